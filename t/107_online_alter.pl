# ALTER ... SET TABLESPACE, carried out online: what goes online, what does not and how that
# is said, and that errors, tags, event triggers, privileges are those of core's statement.
#
# Fault (transactions): online ALTER: an event trigger or a COMMIT that fails, before or after the move, a lock that
#   cannot be had, a timeout, a block, a killed client or worker, a database without the extension
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('online_alter', conf => "shared_preload_libraries = 'index_mover, pg_stat_statements'\n");
sub sql { return $node->safe_psql('postgres', @_); }

# The answer of psql to a statement: its output, and what it wrote to standard error
# without the places in the source.
sub answer
{
	my ($mode, $statement, %options) = @_;
	my ($rc, $out, $err) = $node->psql($options{db} || 'postgres', "\\set VERBOSITY verbose\n\\set QUIET off\n$statement",
		on_error_stop => 0, on_error_die => 0,
		connstr => $node->connstr($options{db} || 'postgres') . " options='-cindex_mover.online_alter=$mode'"
		  . ' user=' . ($options{role} || 'postgres'));
	$err =~ s/^psql:[^:]*:\d+: //mg;
	$err =~ s/^LOCATION:.*\n?//mg;
	return ($out, $err);
}
sub jobs { return sql('SELECT count(*) FROM index_mover_jobs'); }

sql(<<'SQL');
CREATE EXTENSION pg_stat_statements;
CREATE ROLE regress_owner; ALTER ROLE regress_owner LOGIN;
CREATE ROLE regress_other LOGIN;
GRANT CREATE ON SCHEMA public TO regress_owner;
GRANT CREATE ON TABLESPACE regress_slow TO regress_owner, regress_other;
GRANT CREATE ON TABLESPACE regress_fast TO regress_owner;
ALTER ROLE postgres SET client_min_messages = notice;
GRANT SET ON PARAMETER index_mover.online_alter TO regress_owner, regress_other;
SET ROLE regress_owner;
CREATE TABLE t (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow, long text) TABLESPACE regress_slow;
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 3000) g;
CREATE INDEX t_long ON t (md5(long)) TABLESPACE regress_slow;
CREATE MATERIALIZED VIEW m TABLESPACE regress_slow AS SELECT id FROM t;
CREATE UNLOGGED TABLE u (id int) TABLESPACE regress_slow;
CREATE TABLE p (id int) PARTITION BY RANGE (id) TABLESPACE regress_slow;
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100) TABLESPACE regress_slow;
CREATE INDEX p_id ON p (id) TABLESPACE regress_slow;
CREATE VIEW v AS SELECT 1;
CREATE SEQUENCE s;
RESET ROLE;
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

sub place
{
	my ($relation) = @_;
	return sql("SELECT coalesce(spcname, 'pg_default') FROM pg_class c LEFT JOIN pg_tablespace s ON s.oid = reltablespace"
		  . " WHERE c.oid = '$relation'::regclass");
}
sub kind_of_last_job
{
	return sql("SELECT string_agg(kind || ' ' || status, ', ' ORDER BY kind) FROM index_mover_history"
		  . ' WHERE job = (SELECT max(job) FROM index_mover_jobs)');
}

# What is said of a statement that is refused, or left to core.
my $refusal = qr/ALTER [A-Z ]+ \.\.\. SET TABLESPACE cannot be carried out online\nDETAIL: /;
my $notice = qr/^NOTICE:  00000: ALTER [A-Z ]+ \.\.\. SET TABLESPACE is not carried out online\nDETAIL: /m;

# ---- what goes online -----------------------------------------------------------------
foreach my $case (
	[ 'ALTER TABLE t SET TABLESPACE', 't', 'ALTER TABLE', 'table moved, toast moved, toast index moved' ],
	[ 'ALTER TABLE ONLY t SET TABLESPACE', 't', 'ALTER TABLE', 'table moved, toast moved, toast index moved' ],
	[ 'ALTER TABLE IF EXISTS public.t SET TABLESPACE', 't', 'ALTER TABLE', 'table moved, toast moved, toast index moved' ],
	[ 'ALTER INDEX t_pkey SET TABLESPACE', 't_pkey', 'ALTER INDEX', 'index moved' ],
	[ 'ALTER TABLE t_long SET TABLESPACE', 't_long', 'ALTER TABLE', 'index moved' ],
	[ 'ALTER MATERIALIZED VIEW m SET TABLESPACE', 'm', 'ALTER MATERIALIZED VIEW', 'table moved' ],
	[ 'ALTER TABLE m SET TABLESPACE', 'm', 'ALTER TABLE', 'table moved' ])
{
	my ($statement, $relation, $tag, $moved) = @$case;
	foreach my $mode ('on', 'require')
	{
		my $to = place($relation) eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
		my $before = jobs();
		my ($out, $err) = answer($mode, "$statement $to;", role => 'regress_owner');
		is("$out|$err", "$tag|", "$mode, $statement: the answer is core's");
		is(place($relation), $to, "$mode, $statement: moved");
		is(jobs(), $before + 1, "$mode, $statement: by a job");
		is(kind_of_last_job(), $moved, "$mode, $statement: of this relation");
		($out, $err) = answer($mode, "$statement $to;", role => 'regress_owner');
		is("$out|$err", "$tag|", "$mode, $statement: in place is a success");
		is(jobs(), $before + 1, "$mode, $statement: without a job");
	}
}
answer('on', 'ALTER TABLE t SET TABLESPACE regress_fast;');
is(join(' ', map { place($_) } qw(t t_pkey t_long)), 'regress_fast regress_slow regress_slow',
	'a table moves without its indexes');
answer('on', 'ALTER TABLE t SET TABLESPACE regress_slow;');
all_right($node, 't', 'after all moves', no_metadata => 1);
leftovers_ok($node, 'after all moves');
my $jobs_before = jobs();
my ($out, $err) = answer('require', 'ALTER TABLE p SET TABLESPACE regress_fast; ALTER INDEX p_id SET TABLESPACE regress_fast;',
	role => 'regress_owner');
is("$out|$err", "ALTER TABLE\nALTER INDEX|", 'partitioned relations');
is(jobs() - $jobs_before, '2', 'partitioned relations: by jobs, which do not queue for their locks');
is(join(' ', map { place($_) } qw(p p1 p_id p1_id_idx)), 'regress_fast regress_slow regress_fast regress_slow',
	'partitioned relations: the default only');

# the texts of pgAdmin 4 (its templates of tables, indexes, materialized views and "Move objects to...")
foreach my $case (
	[ 't', "ALTER TABLE IF EXISTS public.t\n    SET TABLESPACE %s;\n\n" ],
	[ 't_long', "ALTER INDEX IF EXISTS public.t_long\n    SET TABLESPACE %s;\n\n" ],
	[ 'm', "ALTER MATERIALIZED VIEW IF EXISTS public.m\n  SET TABLESPACE %s;\n\n" ],
	[ 't', "\n\nALTER TABLE ALL IN TABLESPACE regress_slow\n  OWNED BY regress_owner\n    SET TABLESPACE %s;\n\n\n\n" ],
	[ 't_long', "\n\n\nALTER INDEX ALL IN TABLESPACE regress_slow\n\n    SET TABLESPACE %s;\n\n\n" ],
	[ 'm', "\n\n\n\nALTER MATERIALIZED VIEW ALL IN TABLESPACE regress_slow\n\n    SET TABLESPACE %s;\n\n" ])
{
	my ($relation, $text) = @$case;
	sql("ALTER TABLE $relation SET TABLESPACE regress_slow; ALTER TABLE u SET TABLESPACE regress_fast");
	my ($before, $tag) = (jobs(), $text =~ /(ALTER [A-Z ]+?) (?:ALL|IF)/);
	my ($out, $err) = answer('require', sprintf($text, 'regress_fast'));
	is("$out|$err", "$tag|", "pgAdmin, $tag $relation: the answer is core's") or diag $text;
	is(place($relation) . ' ' . (jobs() - $before), 'regress_fast 1', "pgAdmin, $tag $relation: by a job");
}
sql("ALTER $_ ALL IN TABLESPACE regress_fast SET TABLESPACE regress_slow") foreach 'TABLE', 'INDEX', 'MATERIALIZED VIEW';
sql('ALTER TABLE p SET TABLESPACE regress_fast; ALTER INDEX p_id SET TABLESPACE regress_fast');
# the extended protocol, as drivers speak it: prepared, in a pipeline, and after another statement of a pipeline
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $pgbench = sub {
		my ($mode, $times, $text) = @_;
		local $ENV{PGOPTIONS} = '-cindex_mover.online_alter=require';
		append_to_file("$dir/$mode.$times.sql", $text);
		my ($before, $said) = (jobs(), '');
		IPC::Run::run(
			[ 'pgbench', '-n', '-c', '1', '-t', $times, '-M', $mode, '-f', "$dir/$mode.$times.sql", $node->connstr('postgres') ],
			'>', \my $ignored, '2>', \$said);
		return ($said, jobs() - $before);
	};
	my ($there, $back) = map { "ALTER TABLE t SET TABLESPACE $_;\n" } 'regress_fast', 'regress_slow';
	my ($said, $count) = $pgbench->('prepared', 2, $there . $back);
	is($count . place('t'), '4regress_slow', 'prepared statements: by jobs, again and again') or diag $said;
	($said, $count) = $pgbench->('extended', 1, "\\startpipeline\n$there${back}SELECT 1;\n\\endpipeline\n");
	is($count . place('t'), '2regress_slow', 'a pipeline that begins with the statements: by jobs') or diag $said;
	($said, $count) = $pgbench->('extended', 3, "\\startpipeline\nSELECT 1;\n$there\\endpipeline\n");
	like($said, qr/$refusal It is executed in a transaction block\./, 'a pipeline that begins with another statement: refused');
	is($count . place('t'), '0regress_slow', 'a pipeline that begins with another statement: without a job');
}
# the session is as core leaves it
foreach my $role ('regress_owner', 'postgres')
{
	my $session = IndexMover::Session->new($node, user => $role);
	my ($value) = $session->run("SELECT nextval('s')");
	my $to = other_place(place('t'));
	$session->run('SET client_min_messages = warning; DECLARE c CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id');
	$session->run("SET index_mover.online_alter = require; ALTER TABLE t SET TABLESPACE $to");
	$session->send('SELECT lastval()');
	is($session->answer . $session->errors, $value, "$role: lastval() is that of the session");
	is($session->run('FETCH 2 FROM c'), "1\n2", "$role: a cursor WITH HOLD goes on");
	if ($role eq 'postgres')
	{
		$session->run("SELECT move_indexes('t_pkey', '" . elsewhere($node, 't_pkey') . "')");
		is($session->run('SELECT lastval()'), $value, "$role: lastval(), after move_indexes(), too");
		# whose role is not that of the login, and could not log in
		$session->run('CREATE ROLE regress_nologin; GRANT CREATE ON SCHEMA public TO regress_nologin');
		$session->run('GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_nologin; SET ROLE regress_nologin');
		$session->run('CREATE TABLE theirs (i int) TABLESPACE regress_slow; ALTER TABLE theirs SET TABLESPACE regress_fast; RESET ROLE');
		is(place('theirs') . sql(q(SELECT ' ' || role FROM index_mover_jobs ORDER BY job DESC LIMIT 1)), 'regress_fast regress_nologin',
			'SET ROLE: the job is of that role');
		$session->run('DROP TABLE theirs; DROP OWNED BY regress_nologin; DROP ROLE regress_nologin');
	}
	$session->end;
}
sql('CREATE ROLE regress_plain LOGIN');
my $plain = IndexMover::Session->new($node, user => 'regress_plain');
$plain->send('SET index_mover.online_alter = on');
$plain->answer;
like($plain->errors, qr/^ERROR:  42501: permission denied to set parameter "index_mover.online_alter"/m, 'a setting of superusers');
$plain->end;

# ---- errors are those of core ---------------------------------------------------------
foreach my $statement (
	'ALTER TABLE no_such SET TABLESPACE regress_fast',
	'ALTER TABLE IF EXISTS no_such SET TABLESPACE regress_fast',
	'ALTER INDEX no_such SET TABLESPACE regress_fast',
	'ALTER INDEX t SET TABLESPACE regress_fast',
	'ALTER MATERIALIZED VIEW t SET TABLESPACE regress_fast',
	'ALTER TABLE t SET TABLESPACE no_such',
	'ALTER TABLE t SET TABLESPACE pg_global',
	'ALTER TABLE v SET TABLESPACE regress_fast',
	'ALTER TABLE s SET TABLESPACE regress_fast',
	'ALTER TABLE pg_class SET TABLESPACE regress_fast',
	'ALTER TABLE ALL IN TABLESPACE no_such SET TABLESPACE regress_fast',
	'ALTER TABLE ALL IN TABLESPACE regress_slow SET TABLESPACE no_such',
	'ALTER TABLE ALL IN TABLESPACE pg_global SET TABLESPACE regress_fast',
	'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY no_such SET TABLESPACE regress_fast',
	'ALTER INDEX ALL IN TABLESPACE regress_fast OWNED BY regress_other SET TABLESPACE regress_slow',
	'ALTER TABLE ALL IN TABLESPACE regress_slow SET TABLESPACE regress_slow')
{
	foreach my $role ('regress_owner', 'regress_other')
	{
		is(join('|', answer('on', "$statement;", role => $role)), join('|', answer('off', "$statement;", role => $role)),
			"$role, $statement: as core");
	}
}
foreach my $statement ('ALTER TABLE t SET TABLESPACE regress_fast',
	'ALTER TABLE ALL IN TABLESPACE regress_slow SET TABLESPACE regress_slow')
{
	is(join('|', answer('on', "$statement;", role => 'regress_other')), join('|', answer('off', "$statement;", role => 'regress_other')),
		"$statement by another role: as core");
}
# a privilege of 17 and newer
if ($node->pg_version >= 17)
{
	sql('GRANT MAINTAIN ON t TO regress_other; GRANT CREATE ON TABLESPACE regress_fast TO regress_other');
	like(join('|', answer('on', 'ALTER TABLE t SET TABLESPACE regress_fast;', role => 'regress_other')),
		qr/^\|ERROR:  42501: must be owner of table t$/, 'MAINTAIN is not enough');
	sql('REVOKE MAINTAIN ON t FROM regress_other; REVOKE CREATE ON TABLESPACE regress_fast FROM regress_other');
}
sql('REVOKE CREATE ON TABLESPACE regress_fast FROM regress_owner; ALTER TABLE t SET TABLESPACE regress_slow');
like(join('|', answer('on', 'ALTER TABLE t SET TABLESPACE regress_fast;', role => 'regress_owner')),
	qr/^\|ERROR:  42501: permission denied for tablespace regress_fast$/, 'no CREATE on the tablespace');
sql('GRANT CREATE ON TABLESPACE regress_fast TO regress_owner');

# ---- what cannot be online ------------------------------------------------------------
sql(<<'SQL');
CREATE FUNCTION foreign_handler(internal) RETURNS table_am_handler LANGUAGE internal AS 'heap_tableam_handler';
CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER foreign_handler;
CREATE TABLE other_am (i int) USING heap2 TABLESPACE regress_slow;
CREATE INDEX u_id ON u (id);
CREATE EXTENSION bloom;
CREATE TABLE by_rebuild (i int);
CREATE INDEX by_rebuild_i ON by_rebuild USING bloom (i) TABLESPACE regress_slow;
SQL
my $oid = sql("SELECT 'by_rebuild_i'::regclass::oid");
sub rebuild { return qr/To build another index there: SELECT \* FROM index_mover_call\.move_indexes\('public\.$_[0]', \S+, 'rebuild'\);/; }
my $use = qr/Use SELECT \* FROM index_mover_call\.move_table\('public\.t', 'regress_fast', wait => false\);/;
sql('CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE t SET TABLESPACE regress_fast; END $$');
foreach my $case (
	[ 'BEGIN; ALTER TABLE t SET TABLESPACE regress_fast; ROLLBACK;', '25001', 'It is executed in a transaction block\.', $use ],
	[ 'BEGIN; ALTER TABLE t SET TABLESPACE regress_fast, SET (fillfactor = 90); ROLLBACK;', '25001',
		'It is executed in a transaction block\.', 'Send SET TABLESPACE as a statement of its own, outside of a transaction block\.' ],
	[ 'BEGIN; ALTER INDEX ALL IN TABLESPACE regress_slow SET TABLESPACE regress_fast; ROLLBACK;', '25001',
		'It is executed in a transaction block\.', 'Send it on its own, outside of a transaction block\.' ],
	[ 'SELECT f();', '25001', 'It is executed from a function\.', $use ],
	[ 'DO $$ BEGIN ALTER TABLE t SET TABLESPACE regress_fast; END $$;', '25001', 'It is executed from a function\.', $use ],
	[ 'ALTER TABLE t SET TABLESPACE regress_fast\\; SELECT 1;', '25001', 'It is executed in a transaction block\.', $use ],
	[ "SET default_transaction_isolation = 'serializable'; ALTER TABLE t SET TABLESPACE regress_fast;",
		'0A000', 'Its isolation level keeps one snapshot until the end\.', 'Set default_transaction_isolation to "read committed"\.' ],
	[ 'ALTER TABLE t SET TABLESPACE regress_fast, SET (fillfactor = 90);', '0A000', 'It has several subcommands\.',
		'Send SET TABLESPACE as a statement of its own\.' ],
	[ 'ALTER TABLE u SET TABLESPACE regress_fast;', '0A000', '"u" cannot be copied: ' ],
	[ 'ALTER INDEX u_id SET TABLESPACE regress_fast;', '0A000', '"u_id" cannot be copied: ', rebuild('u_id') ],
	[ 'ALTER TABLE other_am SET TABLESPACE regress_fast;', '0A000',
		'"other_am" cannot be copied: table access method "heap2" is not "heap"\.' ],
	[ 'ALTER INDEX by_rebuild_i SET TABLESPACE regress_fast;', '0A000', '"by_rebuild_i" cannot be copied: access method "bloom" ',
		rebuild('by_rebuild_i') ],
	[ 'SET allow_system_table_mods = on; ALTER TABLE pg_largeobject SET TABLESPACE regress_fast;', '0A000',
		'"pg_largeobject" is a system relation\.' ],
	[ 'CREATE TEMP TABLE x (i int); ALTER TABLE x SET TABLESPACE regress_fast;', '0A000', '"x" is temporary\.' ],
	[ 'ALTER MATERIALIZED VIEW ALL IN TABLESPACE regress_slow SET TABLESPACE regress_fast NOWAIT;', '0A000', 'It has NOWAIT\.',
		'Use lock_timeout in place of NOWAIT\.' ])
{
	my ($statement, $state, $reason, $hint) = @$case;
	sql("ALTER TABLE $_ SET TABLESPACE regress_slow") foreach 't', 'm', 'u', 'u_id', 'other_am';
	my $before = jobs();
	my (undef, $refused) = answer('require', $statement);
	like($refused, qr/^ERROR:  $state: $refusal $reason/m,
		"require, $statement: refused");
	like($refused, qr/HINT:  $hint/, "require, $statement: what to do") if $hint;
	unlike($refused, qr/HINT/, "require, $statement: nothing helps") unless $hint;
	my (undef, $told) = answer('on', $statement);
	like($told, qr/$notice $reason.* An exclusive lock is held while the files are copied\./,
		"on, $statement: told");
	unlike($told, qr/ERROR/, "on, $statement: and done by core");
	is(scalar(() = $told =~ /NOTICE/g), 1, "on, $statement: told once");
	is(jobs(), $before, "$statement: without a job");
}
is(place('m'), 'regress_fast', 'core has moved what is left to it');
is(place('by_rebuild_i') . sql("SELECT 'by_rebuild_i'::regclass::oid"), "regress_fast$oid",
	'an index that only a rebuild could move: by core, with its OID');
sql('DROP TABLE by_rebuild; DROP EXTENSION bloom; SET allow_system_table_mods = on; ALTER TABLE pg_largeobject SET TABLESPACE pg_default');
# nor in a parallel worker, where core says why
sql(<<'SQL');
CREATE FUNCTION in_worker() RETURNS int PARALLEL SAFE LANGUAGE plpgsql AS
	$$ BEGIN ALTER TABLE t SET TABLESPACE regress_fast; RETURN 1; END $$;
SQL
{
	my $parallel = $node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
	my ($off, $on) = map { (answer($_, "SET $parallel = on; SELECT in_worker();"))[1] } 'off', 'require';
	like($off, qr/^ERROR:  25000: cannot execute ALTER TABLE during a parallel operation/, 'in a parallel worker, off: refused by core');
	is($on, $off, 'in a parallel worker, require: as core');
}
# a partitioned relation has no files, but core queues for its lock
foreach my $statement ('ALTER TABLE p SET TABLESPACE', 'ALTER INDEX p_id SET TABLESPACE')
{
	my ($relation) = $statement =~ /(p\w*) SET/;
	my $to = other_place(place($relation));
	my (undef, $refused) = answer('require', "BEGIN; $statement $to; ROLLBACK;");
	like($refused, qr/^ERROR:  25001: $refusal It is executed in a transaction block\./m, "require, $statement, in a block: refused");
	my (undef, $told) = answer('on', "BEGIN; $statement $to; COMMIT;");
	like($told, qr/$notice It is executed in a transaction block\. It queues for an exclusive lock\.$/m,
		"on, $statement, in a block: told");
	is(place($relation), $to, "on, $statement, in a block: done by core");
}
# TimescaleDB's hook moves the compressed data of a chunk, too: here as far as its catalog goes, and not the extension
sql(<<'SQL');
SET allow_system_table_mods = on;
INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
  VALUES (99999, 'timescaledb', 10, 'public'::regnamespace, false, '0');
CREATE SCHEMA _timescaledb_catalog;
CREATE TABLE _timescaledb_catalog.hypertable (schema_name name, id int, table_name name);
CREATE TABLE _timescaledb_catalog.chunk (id int, table_name name, schema_name name, compressed_chunk_id int);
ALTER EXTENSION timescaledb ADD TABLE _timescaledb_catalog.hypertable;
ALTER EXTENSION timescaledb ADD TABLE _timescaledb_catalog.chunk;
INSERT INTO _timescaledb_catalog.hypertable VALUES ('public', 1, 'hyper');
INSERT INTO _timescaledb_catalog.chunk VALUES (1, 'chunk', 'public'), (2, 't', 'elsewhere');
CREATE TABLE hyper (i int) TABLESPACE regress_slow;
CREATE INDEX hyper_i ON hyper (i) TABLESPACE regress_slow;
CREATE TABLE chunk (i int) TABLESPACE regress_slow;
CREATE INDEX chunk_i ON chunk (i) TABLESPACE regress_slow;
CREATE TABLE few (i int) TABLESPACE regress_slow;
SQL
foreach my $table ('hyper', 'chunk')
{
	my $before = jobs();
	my (undef, $refused) = answer('require', "ALTER TABLE $table SET TABLESPACE regress_fast;");
	like($refused, qr/^ERROR:  0A000: $refusal TimescaleDB carries it out for its hypertables and chunks\./,
		"require, a $table of TimescaleDB: refused");
	my (undef, $told) = answer('on', "ALTER TABLE $table SET TABLESPACE regress_fast;");
	like($told, qr/$notice TimescaleDB carries it out for its hypertables and chunks\./, "on, a $table of TimescaleDB: told");
	is(place($table) . (jobs() - $before), 'regress_fast0', "on, a $table of TimescaleDB: without a job");
}
{
	my (undef, $refused) = answer('require', 'ALTER INDEX hyper_i SET TABLESPACE regress_fast;');
	like($refused, qr/^ERROR:  0A000: $refusal TimescaleDB carries it out/, 'an index of a hypertable: refused');
	(undef, $refused) = answer('require', 'ALTER INDEX chunk_i SET TABLESPACE regress_fast;');
	is($refused . place('chunk_i'), 'regress_fast', 'an index of a chunk goes online');
	my ($to, $before) = (other_place(place('t')), jobs());
	my (undef, $said) = answer('require', "ALTER TABLE t SET TABLESPACE $to;");
	is($said . place('t') . (jobs() - $before), "${to}1", 'a table beside hypertables goes online');
	# as from 2.29 on
	sql(<<'SQL');
ALTER TABLE _timescaledb_catalog.chunk DROP table_name, ADD relid regclass;
UPDATE _timescaledb_catalog.chunk SET relid = CASE id WHEN 1 THEN 'chunk'::regclass ELSE 'm' END;
CREATE TABLE _timescaledb_catalog.compression_settings (relid regclass, compress_relid regclass);
ALTER EXTENSION timescaledb ADD TABLE _timescaledb_catalog.compression_settings;
INSERT INTO _timescaledb_catalog.compression_settings VALUES ('hyper', NULL), ('chunk', 'few');
SQL
	foreach my $table ('chunk', 'few')
	{
		(undef, $said) = answer('require', "ALTER TABLE $table SET TABLESPACE pg_default;");
		like($said, qr/^ERROR:  0A000: $refusal TimescaleDB carries it out/, "TimescaleDB 2.29: $table");
	}
	$to = other_place($to);
	(undef, $said) = answer('require', "ALTER TABLE t SET TABLESPACE $to;");
	is($said . place('t'), $to, 'TimescaleDB 2.29: a table beside hypertables goes online');
	# of another shape
	sql('ALTER TABLE t SET TABLESPACE regress_slow; ALTER TABLE _timescaledb_catalog.chunk RENAME relid TO other');
	(undef, $said) = answer('require', 'ALTER TABLE t SET TABLESPACE regress_fast;');
	like($said, qr/^ERROR:  0A000: $refusal TimescaleDB carries it out/, 'a catalog that is not known: left to TimescaleDB');
}
sql("ALTER EXTENSION timescaledb DROP TABLE _timescaledb_catalog.$_") foreach 'chunk', 'hypertable', 'compression_settings';
sql('DROP SCHEMA _timescaledb_catalog CASCADE; DROP TABLE hyper, chunk, few');
sql("SET allow_system_table_mods = on; DELETE FROM pg_extension WHERE extname = 'timescaledb'");
# ownership is what core needs, and not MAINTAIN, nor USAGE on the schema
sql(<<'SQL');
CREATE SCHEMA hidden;
CREATE TABLE hidden.mine (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow) TABLESPACE regress_slow;
ALTER TABLE hidden.mine OWNER TO regress_other;
GRANT CREATE ON TABLESPACE regress_fast TO regress_other;
REVOKE ALL ON hidden.mine FROM regress_other;
SQL
foreach my $kind ('TABLE', 'INDEX')
{
	my ($out, $err) = answer('require', "ALTER $kind ALL IN TABLESPACE regress_slow OWNED BY regress_other SET TABLESPACE regress_fast;",
		role => 'regress_other');
	is("$out|$err", "ALTER $kind|", "an owner without other privileges: ALTER $kind ALL");
}
is(place('hidden.mine') . ' ' . place('hidden.mine_pkey'), 'regress_fast regress_fast', 'an owner without other privileges: moved');
sql('DROP SCHEMA hidden CASCADE; REVOKE CREATE ON TABLESPACE regress_fast FROM regress_other');
sql('DROP TABLE other_am; DROP INDEX u_id');

# ---- all in a tablespace --------------------------------------------------------------
sql('ALTER TABLE u SET TABLESPACE regress_slow; ALTER MATERIALIZED VIEW m SET TABLESPACE regress_slow');
($out, $err) = answer('require', 'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_owner SET TABLESPACE regress_fast;');
like($err, qr/^ERROR:  0A000: $refusal "u" cannot be copied/, 'all, require: one hinders');
is(place('t'), 'regress_slow', 'all, require: nothing was moved');
sql('CREATE TABLE q (id int) PARTITION BY RANGE (id) TABLESPACE regress_slow; ALTER TABLE q OWNER TO regress_other;');
($out, $err) = answer('require', 'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_other SET TABLESPACE regress_fast;');
is("$out|$err|" . place('q'), 'ALTER TABLE||regress_fast', 'all, require: a partitioned table');
sql('ALTER TABLE u OWNER TO regress_other; CREATE TABLE w (i int) TABLESPACE regress_slow; ALTER TABLE w OWNER TO regress_other');
sql('GRANT CREATE ON TABLESPACE regress_fast TO regress_other');
my $before = jobs();
($out, $err) = answer('on', 'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_other SET TABLESPACE regress_fast;');
is(join(' ', place('u'), place('w'), jobs() - $before), 'regress_fast regress_fast 1', 'all, on: one by a job, one by core');
sql('ALTER TABLE u SET TABLESPACE regress_slow; ALTER TABLE u OWNER TO regress_owner');
$before = jobs();
($out, $err) = answer('on', 'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_owner SET TABLESPACE regress_fast;');
like($err, qr/$notice "u" cannot be copied/, 'all, on: one is left to core');
is(join(' ', map { place($_) } qw(t u p1 m)), 'regress_fast regress_fast regress_fast regress_slow', 'all, on: tables moved');
is(jobs(), $before + 1, 'all, on: one job');
($out, $err) = answer('require', 'ALTER MATERIALIZED VIEW ALL IN TABLESPACE regress_slow SET TABLESPACE regress_fast;');
is("$out|$err|" . place('m') . (jobs() - $before), 'ALTER MATERIALIZED VIEW||regress_fast2', 'all materialized views, require: by a job');
sql('ALTER MATERIALIZED VIEW m SET TABLESPACE regress_slow');
($out, $err) = answer('require', 'ALTER INDEX ALL IN TABLESPACE regress_slow SET TABLESPACE regress_fast;');
is("$out|$err", 'ALTER INDEX|', 'all indexes, require');
is(sql("SELECT count(*) FROM pg_class c JOIN pg_tablespace s ON s.oid = reltablespace WHERE spcname = 'regress_slow'"
		  . " AND relkind IN ('i', 'I')"),
	'0', 'all indexes: moved');
($out, $err) = answer('require', 'ALTER INDEX ALL IN TABLESPACE regress_slow SET TABLESPACE regress_fast;');
is("$out|$err", join('|', answer('off', 'ALTER INDEX ALL IN TABLESPACE regress_slow SET TABLESPACE regress_fast;')),
	'no index any more: as core');

# of two roles, and not of a third
sql("CREATE ROLE regress_owned_$_; GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_owned_$_;
	GRANT CREATE ON SCHEMA public TO regress_owned_$_") foreach 1 .. 3;
foreach my $mode ('off', 'on')
{
	my $before = jobs();

	sql("SET ROLE regress_owned_$_; CREATE TABLE owned_$_ (i int) TABLESPACE regress_slow;
		CREATE UNLOGGED TABLE core_$_ (i int) TABLESPACE regress_slow") foreach 1 .. 3;
	my ($out, $err) = answer($mode,
		'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_owned_1, regress_owned_2 SET TABLESPACE regress_fast;');
	is($out, 'ALTER TABLE', "all, OWNED BY two roles, $mode: the tag");
	is(scalar(() = $err =~ /^(?:NOTICE|WARNING|ERROR):  /mg), $mode eq 'on' ? 1 : 0, "all, OWNED BY two roles, $mode: one NOTICE")
	  or diag $err;
	is(join(' ', map { place($_) } qw(owned_1 core_1 owned_2 core_2 owned_3 core_3)),
		'regress_fast ' x 4 . 'regress_slow regress_slow', "all, OWNED BY two roles, $mode: where they are");
	is(jobs() - $before, $mode eq 'on' ? 1 : 0, "all, OWNED BY two roles, $mode: jobs");
	sql('DROP TABLE owned_1, owned_2, owned_3, core_1, core_2, core_3');
}
sql("DROP OWNED BY regress_owned_$_; DROP ROLE regress_owned_$_") foreach 1 .. 3;

# ---- event triggers -------------------------------------------------------------------
sql(<<'SQL');
CREATE TABLE events (n serial, event text, tag text, objects text, place text);
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
  found text;
BEGIN
  IF tg_event = 'ddl_command_end' THEN
    SELECT string_agg(object_identity, ' ' ORDER BY object_identity) INTO found FROM pg_event_trigger_ddl_commands();
  END IF;
  INSERT INTO events (event, tag, objects, place) SELECT tg_event, tg_tag, found, spcname FROM pg_class c
   JOIN pg_tablespace s ON s.oid = reltablespace WHERE c.oid = 't'::regclass;
  IF current_setting('regress.fail', true) = tg_event THEN RAISE 'no %', tg_event; END IF;
END $$;
CREATE EVENT TRIGGER a ON ddl_command_start EXECUTE FUNCTION note();
CREATE EVENT TRIGGER b ON ddl_command_end EXECUTE FUNCTION note();
ALTER EVENT TRIGGER a ENABLE ALWAYS;
TRUNCATE events;
SQL
foreach my $mode ('off', 'on')
{
	my $from = place('t');
	my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
	sql('TRUNCATE events');
	answer($mode, "ALTER TABLE t SET TABLESPACE $to;");
	is(sql('SELECT event, tag, objects, place FROM events ORDER BY n'),
		"ddl_command_start|ALTER TABLE||$from\nddl_command_end|ALTER TABLE|public.t|$to", "$mode: event triggers");
}
foreach my $event ('ddl_command_start', 'ddl_command_end')
{
	my $from = place('t');
	my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
	my (undef, $said) = answer('on', "SET regress.fail = '$event'; ALTER TABLE t SET TABLESPACE $to;");
	like($said, qr/ERROR:  P0001: no $event/, "$event fails");
	is(place('t'), $event eq 'ddl_command_start' ? $from : $to, "$event fails: where the table is");
	if ($event eq 'ddl_command_end')
	{
		like($said, qr/WARNING:  01000: the statement has failed, but job \d+ has moved 1 of 1 relations\n/, "$event fails: told");
		like($said, qr/HINT:  To move them back: SELECT .*undo_move\(\d+\);/,
			"$event fails: a warning");
	}
}
# what such a function has left for the COMMIT fails there
{
	my $to = other_place(place('t'));
	my $moved = qr/the statement has failed, but job \d+ has moved 1 of 1 relations/;

	sql(<<'SQL');
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF current_setting('regress.late', true) = 'fail' THEN RAISE 'not at COMMIT'; END IF;
	IF current_setting('regress.late', true) = 'end' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
SQL
	my (undef, $said) = answer('on', "SET regress.late = 'fail'; ALTER TABLE t SET TABLESPACE $to;");
	like($said, qr/ERROR:  P0001: not at COMMIT/, 'COMMIT fails: the ERROR');
	like($said, qr/WARNING:  01000: $moved\nHINT:  To move them back: SELECT .*undo_move\(\d+\);/, 'COMMIT fails: a warning');
	is(place('t'), $to, 'COMMIT fails: the table was moved');
	# a session that ends before the COMMIT has a log to tell it
	my $log_before = -s $node->logfile;
	answer('on', "SET regress.late = 'end'; ALTER TABLE t SET TABLESPACE " . other_place($to) . ';');
	$node->wait_for_log(qr/FATAL:  .*?terminating connection.*?WARNING:  (?:01000: )?$moved/s, $log_before);
	is(place('t'), other_place($to), 'a session that ends before the COMMIT: the log has the warning');
	# and the next statements of a session have nothing to do with it
	(undef, $said) = answer('on', "ALTER TABLE t SET TABLESPACE $to; SELECT 1/0; BEGIN; SELECT 1; ROLLBACK;");
	unlike($said, qr/WARNING/, 'an ERROR of another statement is not about the job');
}
sql('TRUNCATE events');
answer('on', 'ALTER INDEX ALL IN TABLESPACE regress_fast SET TABLESPACE regress_slow;');
like(sql("SELECT objects FROM events WHERE event = 'ddl_command_end'"), qr/public\.t_long public\.t_pkey/,
	'all: event triggers are told of each');
# a move that fails
sql(<<'SQL');
DROP EVENT TRIGGER a; DROP EVENT TRIGGER b;
CREATE FUNCTION say() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'fires %', tg_event; END $$;
CREATE EVENT TRIGGER a ON ddl_command_start EXECUTE FUNCTION say();
CREATE EVENT TRIGGER b ON ddl_command_end EXECUTE FUNCTION say();
SQL
foreach my $mode ('off', 'on')
{
	my $user = IndexMover::Session->new($node);

	$user->run('BEGIN; SELECT FROM t LIMIT 1');
	my (undef, $said) = answer($mode, "SET lock_timeout = '700ms'; ALTER TABLE t SET TABLESPACE " . other_place(place('t')) . ';');
	is(join(' ', $said =~ /(ddl_command_\w+|ERROR:  \w+)/g), 'ddl_command_start ERROR:  55P03', "$mode: a move that fails has no end");
	$user->end;
}
sql('DROP EVENT TRIGGER a; DROP EVENT TRIGGER b');
# a lock of the transaction itself
sql(<<'SQL');
CREATE FUNCTION hold() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM t LIMIT 1; END $$;
CREATE EVENT TRIGGER c ON ddl_command_start EXECUTE FUNCTION hold();
SQL
{
	my $from = place('t');
	my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
	my (undef, $refused) = answer('require', "ALTER TABLE t SET TABLESPACE $to;");
	like($refused, qr/^ERROR:  55006: $refusal No job can begin: .*holds a lock on "t"/m,
		'require, a lock of its own: refused');
	my (undef, $told) = answer('on', "ALTER TABLE t SET TABLESPACE $to;");
	like($told, qr/$notice No job can begin: .*holds a lock on "t"/, 'on, a lock of its own: told');
	is(place('t'), $to, 'on, a lock of its own: done by core');
}
sql('DROP EVENT TRIGGER c');

# ---- locks ----------------------------------------------------------------------------
# of a partitioned table core waits for the lock without end, whatever index_mover.lock_wait is
my $reader = IndexMover::Session->new($node);
my $owner = IndexMover::Session->new($node);
$owner->run("SET index_mover.online_alter = on; SET index_mover.lock_wait = '100ms'");
{
	my $there = other_place(place('p'));
	my $log_before = -s $node->logfile;

	$reader->run('BEGIN; SELECT FROM p');
	$owner->send('ALTER TABLE ALL IN TABLESPACE ' . place('p') . " OWNED BY regress_owner SET TABLESPACE $there");
	$node->wait_for_log(qr/WARNING:  .*the change of table "p" has waited for a lock for 0\.1 seconds, and goes on waiting/, $log_before);
	$reader->run('COMMIT');
	$owner->answer;
	like($owner->errors, qr/^WARNING:  .*goes on waiting\n/m, 'a partitioned table in use: the caller is told');
	like($owner->errors,
		qr/^HINT:  To see more: SELECT \* FROM index_mover_call\.index_mover_blockers; To cancel the job: SELECT .*cancel_move\(\d+\);$/m,
		'a partitioned table in use: and what can be done');
	is(place('p'), $there, 'a partitioned table in use: waited for, as core does');
}
my $waits = q(SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%');
# another job waits, in the end, for a lock that a trigger function of the statement has taken
sql(<<'SQL');
CREATE TABLE gate (i int);
CREATE FUNCTION lock_gate() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE gate; END $$;
CREATE EVENT TRIGGER g ON ddl_command_start WHEN TAG IN ('ALTER INDEX') EXECUTE FUNCTION lock_gate();
SQL
foreach my $case ([ 'waits for it', "SELECT status FROM move_indexes('t_pkey', '%s')" ], [ 'is to start', undef ])
{
	my ($name, $call) = @$case;
	my $job = IndexMover::Session->new($node);
	my $to = elsewhere($node, 't_pkey');

	$reader->run('BEGIN; LOCK TABLE t IN ACCESS SHARE MODE; SELECT FROM t WHERE id = 1');
	$reader->run("SELECT status FROM move_indexes('t_pkey', '$to', wait => false)") unless $call;
	$job->send(sprintf($call, $to)) if $call;
	poll_until($node, $waits, 't', "another job $name") if $call;
	$owner->send('ALTER INDEX t_long SET TABLESPACE ' . elsewhere($node, 't_long'));
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'gate'::regclass AND granted", '1', "$name: the trigger's lock");
	$reader->send('SELECT FROM gate');
	$owner->answer;
	like($owner->errors,
		qr/ERROR:  40P01: deadlock detected\nDETAIL:  Job \d+ waits for process ${\$reader->pid}, which waits for this session\.$/m,
		"another job $name: a deadlock");
	$reader->answer;
	$reader->run('ROLLBACK');
	$job->answer if $call;
	$job->end;
}
sql('DROP EVENT TRIGGER g; DROP TABLE gate; DROP FUNCTION lock_gate()');
# two statements that wait for jobs of each other, which their trigger functions have submitted
sql(<<'SQL');
CREATE FUNCTION queue() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM FROM move_table(current_setting('regress.queue')::regclass, 'regress_fast', wait => false);
  PERFORM pg_advisory_xact_lock_shared(107);
END $$;
CREATE EVENT TRIGGER q ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION queue();
SQL
{
	my @sessions = map { IndexMover::Session->new($node) } 1, 2;

	sql("CREATE TABLE mutual_$_ (i int) TABLESPACE regress_slow") foreach 1, 2;
	$reader->run('SELECT pg_advisory_lock(107)');
	foreach my $i (1, 2)
	{
		$sessions[ $i - 1 ]->run("SET index_mover.online_alter = on; SET regress.queue = 'mutual_" . (3 - $i) . q('));
		$sessions[ $i - 1 ]->send("ALTER TABLE mutual_$i SET TABLESPACE pg_default");
		poll_until($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", $i,
			"statement $i has submitted its job");
	}
	$reader->run('SELECT pg_advisory_unlock(107)');
	$_->answer foreach @sessions;
	my @failed = grep { $_->errors =~ /ERROR:  40P01: deadlock detected/ } @sessions;
	is(scalar(@failed), 1, 'two statements that wait for each other: one of them fails');
	like($failed[0]->errors, qr/^DETAIL:  Job \d+ waits for process \d+, which waits for this session\.$/m,
		'two statements that wait for each other: why');
	poll_until($node, 'SELECT count(*) FROM index_mover.alive()', 0, 'the jobs of both');
	my ($done) = grep { $sessions[ $_ - 1 ] != $failed[0] } 1, 2;
	is(place("mutual_$done") . ' ' . place('mutual_' . (3 - $done)), 'pg_default regress_fast',
		'two statements that wait for each other: the other is carried out, and its job');
	$_->end foreach @sessions;
}
sql('DROP EVENT TRIGGER q; DROP TABLE mutual_1, mutual_2');
# a name is looked up again after a wait
{
	my $changer = IndexMover::Session->new($node);

	sql('CREATE TABLE again (i int) TABLESPACE regress_slow');
	my $job = sql(q{SELECT max(job) FROM move_table('again', 'regress_fast', wait => false, settings => '{"swap_after": "infinity"}')});
	sql("SELECT pause_move($job)");
	$owner->send('ALTER TABLE again SET TABLESPACE pg_default');
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND pid = " . $owner->pid, '1',
		'a paused job: the statement waits');
	$changer->run('ALTER TABLE again RENAME TO before; CREATE TABLE again (i int) TABLESPACE regress_slow');
	sql("SELECT cancel_move($job)");
	$owner->answer;
	like($owner->errors, qr/^NOTICE:  .*waiting for job $job, which is paused\nHINT:  To resume it: SELECT .*resume_move\($job\);$/m,
		'a paused job: told');
	is(join(' ', map { place($_) } 'again', 'before'), 'pg_default regress_slow', 'renamed while it waits: the table of the name is moved');
	$reader->run('BEGIN; SELECT FROM again');
	$owner->send('ALTER TABLE again SET TABLESPACE regress_fast');
	poll_until($node, $waits, 't', 'made again: the copy waits');
	$changer->send('BEGIN; DROP TABLE again; CREATE TABLE again (i int) TABLESPACE regress_slow; COMMIT');
	poll_until($node, 'SELECT phase, blocked_by FROM index_mover_progress', 'waiting for lock to start|{' . $changer->pid . '}',
		'made again: the copy gives way');
	$reader->run('COMMIT');
	$_->answer foreach $changer, $owner;
	# (a WARNING that it waits comes if the wait lasts)
	is(join('', grep { /ERROR:/ } split /^/, $owner->errors) . place('again'), 'regress_fast',
		'made again while it waits: the table of the name is moved');
	$changer->end;
	sql('DROP TABLE again, before');
}
# what a name is when the lock is there counts: the same answers, and places, as from core
foreach my $case (
	[ 'renamed', 'one.n', 'ALTER TABLE one.n RENAME TO m', 'one.m' ],
	[ 'renamed, IF EXISTS', 'IF EXISTS one.n', 'ALTER TABLE one.n RENAME TO m', 'one.m' ],
	[ 'moved to another schema', 'n', 'ALTER TABLE one.n SET SCHEMA public', 'public.n' ],
	[ 'moved to a schema that is not searched', 'n', 'ALTER TABLE one.n SET SCHEMA oracle', 'oracle.n' ],
	[ 'renamed, and another made', 'n',
		'ALTER TABLE one.n RENAME TO m; CREATE TABLE one.n (i int) TABLESPACE regress_slow', 'one.m', 'one.n' ],
	[ 'an index renamed', 'one.n_i', 'ALTER INDEX one.n_i RENAME TO m_i', 'one.m_i' ],
	[ 'its schema renamed', 'one.n', 'ALTER SCHEMA one RENAME TO three', 'three.n' ],
	[ 'another found first', 'n', 'CREATE TABLE two.n (i int) TABLESPACE regress_slow', 'one.n', 'two.n' ],
	[ 'a partitioned table renamed', 'one.part', 'ALTER TABLE one.part RENAME TO m', 'one.m' ])
{
	my ($name, $relation, $change, @places) = @$case;
	my $kind = $relation =~ /_i/ ? 'INDEX' : 'TABLE';
	my %found;

	foreach my $mode ('off', 'on')
	{
		my $caller = IndexMover::Session->new($node);
		my $changer = IndexMover::Session->new($node);
		my $locker = IndexMover::Session->new($node);

		sql(<<'SQL');
CREATE SCHEMA one; CREATE SCHEMA two;
CREATE TABLE one.n (i int) TABLESPACE regress_slow; INSERT INTO one.n VALUES (1);
CREATE INDEX n_i ON one.n (i) TABLESPACE regress_slow;
CREATE TABLE one.part (i int) PARTITION BY LIST (i) TABLESPACE regress_slow;
SQL
		$caller->run("SET index_mover.online_alter = $mode; SET search_path = two, one, public");
		# the change has its lock before the statement wants it, or needs none
		my $locks = $change =~ /^ALTER (?:TABLE|INDEX)/;
		$changer->run("BEGIN; $change") if $locks;
		$locker->run('BEGIN; SELECT FROM one.n') unless $locks;
		$caller->send("ALTER $kind $relation SET TABLESPACE regress_fast");
		poll_until($node, $mode eq 'on' ? $waits : "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = " . $caller->pid,
			't', "$mode, $name: waits");
		$changer->run($locks ? 'COMMIT' : $change);
		$caller->answer if $mode eq 'on';
		$locker->run('ROLLBACK') unless $locks;
		$caller->answer if $mode eq 'off';
		$found{$mode} = join("\n", $caller->errors =~ /((?:ERROR|NOTICE): .*)/g, map { "$_: " . place($_) } @places);
		leftovers_ok($node, "$mode, $name", within => 10);
		$_->end foreach $caller, $changer, $locker;
		sql('DROP SCHEMA IF EXISTS one, two, three CASCADE; DROP TABLE IF EXISTS public.n, oracle.n');
	}
	note $found{off};
	is($found{on}, $found{off}, "$name while the statement waits: as core");
}
# a session that a copy has given way to has renamed it
{
	my $changer = IndexMover::Session->new($node);

	sql('CREATE TABLE name (i int) TABLESPACE regress_slow; INSERT INTO name VALUES (1)');
	$reader->run('BEGIN; SELECT FROM name');
	$owner->send('ALTER TABLE name SET TABLESPACE regress_fast');
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", 't', 'the copy waits');
	$changer->send('ALTER TABLE name RENAME TO noun');
	poll_until($node, 'SELECT phase, blocked_by FROM index_mover_progress', 'waiting for lock to start|{' . $changer->pid . '}',
		'renamed: the copy gives way');
	$reader->run('COMMIT');
	$_->answer foreach $changer, $owner;
	like($owner->errors, qr/^ERROR:  42P01: relation "name" does not exist$/m, 'renamed while it is moved: the error');
	is(place('noun'), 'regress_slow', 'renamed while it is moved: where it was');
	is(sql('SELECT status, sqlstate, message FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		'skipped|42P01|It was renamed to "public.noun" while it was being moved.', 'renamed while it is moved: the history');
	leftovers_ok($node, 'renamed while it is moved', within => 10);
	$changer->end;
	sql('DROP TABLE noun');
}
# renamed in each round: the statement gives up
{
	my $caller = IndexMover::Session->new($node);

	sql("CREATE SCHEMA $_; CREATE TABLE $_.n (i int) TABLESPACE regress_slow; INSERT INTO $_.n VALUES (1)")
	  foreach 's1', map { "x$_" } 2 .. 6;
	$reader->run(join '; ', 'BEGIN', 'SELECT FROM s1.n', map { "SELECT FROM x$_.n" } 2 .. 6);
	$caller->run('SET index_mover.online_alter = on; SET search_path = s6, s5, s4, s3, s2, s1');
	$caller->send('ALTER TABLE n SET TABLESPACE regress_fast');
	foreach my $round (1 .. 5)
	{
		my $next = $round + 1;

		poll_until($node, "SELECT table_name FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", "s$round.n",
			"renamed in each round: the copy of s$round.n waits");
		sql("ALTER SCHEMA x$next RENAME TO s$next");
	}
	$caller->answer;
	like($caller->errors, qr/^ERROR:  55006: relation "n" was renamed or dropped 5 times in the meantime$/m,
		'renamed in each round: the error');
	$reader->run('COMMIT');
	$caller->end;
	leftovers_ok($node, 'renamed in each round', within => 10);
	sql('DROP SCHEMA s1, s2, s3, s4, s5, s6 CASCADE');
}
# an error of a move that has the SQLSTATE of a rename begins no further job
{
	my $before = jobs();

	sql('CREATE TABLE name (i int) TABLESPACE regress_slow; INSERT INTO name VALUES (1)');
	sql('ALTER SEQUENCE index_mover.ledger_seq SET SCHEMA public');
	$owner->run("SET statement_timeout = '20s'");
	$owner->send('ALTER TABLE name SET TABLESPACE regress_fast');
	$owner->answer;
	like($owner->errors, qr/^ERROR:  42P01: could not move table "name" to tablespace "regress_fast"$/m,
		'a sequence of ours is missing: the error');
	is(jobs() - $before, 1, 'a sequence of ours is missing: one job');
	$owner->run('RESET statement_timeout');
	sql('ALTER SEQUENCE public.ledger_seq SET SCHEMA index_mover');
	sql('DROP TABLE name');
}
# dropped while it is moved
sql('CREATE TABLE brief (i int); INSERT INTO brief VALUES (1)');
foreach my $exists ('', 'IF EXISTS ')
{
	sql('CREATE TABLE IF NOT EXISTS brief (i int); INSERT INTO brief VALUES (1)');
	my $dropper = IndexMover::Session->new($node);

	$reader->run('BEGIN; SELECT FROM brief');
	$owner->send("ALTER TABLE ${exists}brief SET TABLESPACE regress_fast");
	poll_until($node, $waits, 't', "${exists}brief: the copy waits");
	$dropper->send('DROP TABLE brief');
	poll_until($node, 'SELECT phase, blocked_by FROM index_mover_progress', 'waiting for lock to start|{' . $dropper->pid . '}',
		"${exists}brief: another session drops it, and the copy gives way");
	$reader->run('COMMIT');
	$dropper->answer;
	$owner->answer;
	$dropper->end;
	like($owner->errors, $exists ? qr/NOTICE:  .*relation "brief" does not exist, skipping/ : qr/ERROR:  .*relation "brief" does not exist/,
		"${exists}brief: dropped while it is moved");
}
$_->end foreach $reader, $owner;

# ---- many that wait for one job ------------------------------------------------------------
# each looks for deadlocks, among all that wait
{
	my $reader_of_t = IndexMover::Session->new($node);
	my $there = other_place(place('t'));
	my @owners = map { IndexMover::Session->new($node) } 1 .. 20;

	$reader_of_t->run('BEGIN; SELECT FROM t LIMIT 1');
	foreach my $session (@owners)
	{
		$session->run('SET index_mover.online_alter = on');
		$session->send("ALTER TABLE t SET TABLESPACE $there");
	}
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", 't', 'the job waits');
	# several looks of each
	sleep 4;
	$reader_of_t->run('COMMIT');
	$_->answer foreach @owners;
	is(join('', map { $_->errors =~ /ERROR/g } @owners), '', 'twenty ALTERs of one table: all have succeeded');
	my $told = qr/^NOTICE:  .*waiting for job \d+, which moves relations of the same table\nHINT:  .*cancel_move/m;
	is(scalar(grep { $_->errors =~ $told } @owners), 19, 'twenty ALTERs of one table: those that have waited for the job were told');
	is(place('t'), $there, 'twenty ALTERs of one table: moved');
	$_->end foreach $reader_of_t, @owners;
}

# ---- limits of time -------------------------------------------------------------------
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT FROM t LIMIT 1');
my $from = place('t');
my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
(undef, $err) = answer('on', "SET lock_timeout = '700ms'; SET index_mover.swap_after = 'infinity'; ALTER TABLE t SET TABLESPACE $to;");
like($err, qr/^ERROR:  55P03: could not move table "t" to tablespace "$to"/m, 'ALTER online fails by lock_timeout');
is(place('t'), $from, 'lock_timeout: where it was');
leftovers_ok($node, 'lock_timeout', within => 10);
is(sql(q(SELECT settings ->> 'on_blocker', settings ->> 'lock_wait' FROM index_mover_jobs ORDER BY job DESC LIMIT 1)), 'fail|700ms',
	'lock_timeout: resume_move() has the same limits');
sql("CREATE ROLE regress_few; GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_few;
	CREATE TABLE few1 (i int, t text) TABLESPACE regress_slow; CREATE TABLE few2 (i int, t text) TABLESPACE regress_slow;
	ALTER TABLE few1 OWNER TO regress_few; ALTER TABLE few2 OWNER TO regress_few");
my $few = IndexMover::Session->new($node);
$few->run('BEGIN; SELECT FROM few2');
(undef, $err) = answer('on',
	"SET lock_timeout = '700ms'; ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_few SET TABLESPACE regress_fast;");
like($err, qr/^ERROR:  55P03: could not move table "few2" /m, 'lock_timeout, all: the SQLSTATE');
like($err, qr/^DETAIL:  Job \d+ has moved 1 of 2 relations, which stay moved\. Of this one: /m, 'lock_timeout, all: what was moved');
like($err, qr/^HINT:  To move the rest: SELECT .*index_mover_call\.resume_move\(\d+\);$/m, 'lock_timeout, all: how to go on');
is(place('few1') . ' ' . place('few2'), 'regress_fast regress_slow', 'lock_timeout, all: where they are');
$few->end;
# less time, given while it runs
{
	my $waiting = IndexMover::Session->new($node);
	my $locker = IndexMover::Session->new($node);

	# (its new file comes last)
	sql('ALTER TABLE few1 SET TABLESPACE regress_slow');
	$locker->run('BEGIN; SELECT FROM few2');
	$waiting->run("SET index_mover.online_alter = on; SET index_mover.max_workers = 1");
	$waiting->send('ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_few SET TABLESPACE regress_fast');
	poll_until($node, q(SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%'), 't', 'less time: the first copy waits');
	my $job = sql('SELECT max(job) FROM index_mover_jobs');
	sql("SELECT alter_move($job, 'max_duration', '1s')");
	sql('SELECT pg_sleep(1.1)');
	$locker->run('COMMIT');
	$waiting->answer;
	my $why = qr/Job $job has moved 1 of 2 relations, which stay moved\. Of this one: not started: index_mover\.max_duration was over/;
	like($waiting->errors, qr/^ERROR:  57014: could not move table "few1" to tablespace "regress_fast"\nDETAIL:  $why/m,
		'less time: the ERROR');
	is(place('few1') . ' ' . place('few2'), 'regress_slow regress_fast', 'less time: where they are');
	$_->end foreach $waiting, $locker;
}
# what a cancel of ALL finds moved stays moved; and the session goes on
foreach my $end ([ 'Ctrl-C', 'canceling statement due to user request' ], [ 'a timeout', 'canceling statement due to statement timeout' ],
	[ 'cancel_move()', undef ])
{
	my ($name, $message) = @$end;
	my ($canceled, $locker) = map { IndexMover::Session->new($node) } 1, 2;
	my $before = jobs();

	sql("ALTER TABLE $_ SET TABLESPACE regress_slow") foreach 'few1', 'few2';
	$locker->run('BEGIN; SELECT FROM few2');
	$canceled->run('SET index_mover.online_alter = on');
	$canceled->run("SET statement_timeout = '10s'") if $name eq 'a timeout';
	$canceled->send('ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_few SET TABLESPACE regress_fast');
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%' AND table_name = 'few2'", 't',
		"$name, all: the second copy waits");
	poll_until($node, "SELECT spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = reltablespace WHERE relname = 'few1'", 'regress_fast',
		"$name, all: the first one was moved");
	my $job = sql('SELECT max(job) FROM index_mover_jobs');
	sql('SELECT pg_cancel_backend(' . $canceled->pid . ')') if $name eq 'Ctrl-C';
	sql("SELECT cancel_move($job)") if $name eq 'cancel_move()';
	$canceled->answer;
	like($canceled->errors,
		$message
		? qr/^ERROR:  57014: $message\nDETAIL:  1 of 2 relations of job $job have been moved\.\nHINT:  .*resume_move\($job\);$/m
		: qr/^ERROR:  57014: could not move table "few2" .*\nDETAIL:  Job $job has moved 1 of 2 relations, which stay moved\. /m,
		"$name, all: the ERROR");
	unlike($canceled->errors, qr/WARNING/, "$name, all: told once");
	wait_for_no_worker($node);
	is(place('few1') . ' ' . place('few2') . ' ' . (jobs() - $before), 'regress_fast regress_slow 1', "$name, all: what was moved stays");
	leftovers_ok($node, "$name, all", within => 10);
	$locker->run('COMMIT');
	$canceled->run('ALTER TABLE few2 SET TABLESPACE regress_fast');
	is(place('few2'), 'regress_fast', "$name, all: the next statement");
	$_->end foreach $canceled, $locker;
}
# what ends a job that has begun is never followed by core's copy
{
	my ($caller, $locker) = map { IndexMover::Session->new($node) } 1, 2;

	$locker->run('BEGIN; SELECT FROM few2');
	$caller->run('SET index_mover.online_alter = on');
	$caller->send('ALTER TABLE few2 SET TABLESPACE regress_slow');
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't', 'a terminated worker: waits');
	sql('SELECT pg_terminate_backend(pid) FROM index_mover_progress');
	$caller->answer;
	like($caller->errors, qr/^ERROR:  57P01: could not move table "few2" to tablespace "regress_slow"$/m, 'a terminated worker: the ERROR');
	unlike($caller->errors, qr/is not carried out online/, 'a terminated worker: nothing is left to core');
	wait_for_no_worker($node);
	is(place('few2'), 'regress_fast', 'a terminated worker: where it was');
	leftovers_ok($node, 'a terminated worker', within => 10);
	# nor is a session ended, or waited for no longer, as a call would be told to
	$caller->run("SET index_mover.on_blocker = 'terminate'; SET index_mover.lock_wait = '200ms'; SET index_mover.max_rate = '500MB'");
	my $log_before = -s $node->logfile;
	$caller->send('ALTER TABLE few2 SET TABLESPACE regress_slow');
	$node->wait_for_log(qr/the copy of table "few2" has waited for a lock for 0\.2 seconds, and goes on waiting/, $log_before);
	sql('SELECT pg_sleep(1)');
	is($locker->run('SELECT 1'), '1', 'on_blocker is not taken: who is in the way goes on');
	$locker->run('COMMIT');
	$caller->answer;
	unlike($caller->errors, qr/ERROR/, 'on_blocker is not taken: the statement waits');
	is(place('few2') . ' ' . sql(q(SELECT settings ->> 'max_rate' FROM index_mover_jobs ORDER BY job DESC LIMIT 1)), 'regress_slow 500MB',
		'other settings of the session are those of the job');
	$_->end foreach $caller, $locker;
}
sql('DROP TABLE few1, few2');
(undef, $err) = answer('on', "SET statement_timeout = '700ms'; ALTER TABLE t SET TABLESPACE $to;");
like($err, qr/^ERROR:  57014: canceling statement due to statement timeout/m, 'ALTER online fails by statement_timeout');
is(place('t'), $from, 'statement_timeout: where it was');
leftovers_ok($node, 'statement_timeout', within => 10);

# Ctrl-C, and a connection that is lost, while the job waits for its lock
foreach my $end ([ 'Ctrl-C', 'pg_cancel_backend' ], [ 'the end of the session', 'pg_terminate_backend' ], [ 'a killed client', '' ])
{
	my ($name, $function) = @$end;
	my $before = jobs();
	my $caller = IndexMover::Session->new($node);
	$caller->run('SET index_mover.online_alter = require');
	$caller->send("ALTER TABLE t SET TABLESPACE $to");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE lock_attempts > 0", 1, "$name: the copy waits for its lock");
	sql("SELECT $function(" . $caller->pid . ')') if $function;
	$caller->kill_client unless $function;
	if ($function eq 'pg_cancel_backend')
	{
		$caller->answer;
		like($caller->errors, qr/^ERROR:  57014: canceling statement due to user request/m, "$name: the ERROR");
		$caller->end;
	}
	wait_for_no_worker($node);
	is(place('t'), $from, "$name: where it was");
	is((jobs() - $before) . ' ' . kind_of_last_job(),
		'1 table canceled, toast canceled, toast index canceled', "$name: the job is canceled");
	leftovers_ok($node, $name, within => 10);
}
my $caller = IndexMover::Session->new($node);
$caller->run('SET index_mover.online_alter = on');
$caller->send("ALTER TABLE t SET TABLESPACE $to");
poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't', 'the copy waits for the holder');
is(sql('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $caller->pid . ' AND backend_xmin IS NULL'), '1',
	'the caller holds no snapshot');
is(sql("SELECT string_agg(locktype, ' ') FROM pg_locks WHERE locktype <> 'virtualxid' AND pid = " . $caller->pid),
	'', 'the caller holds no lock');
$holder->run('COMMIT');
$caller->answer;
is($caller->errors, '', 'the statement ends');
is(place('t'), $to, 'and the table is moved');

# ---- beside another job of the table --------------------------------------------------
$holder->run('BEGIN; LOCK TABLE t IN ACCESS SHARE MODE; SELECT FROM t WHERE id = 1');
my $other = IndexMover::Session->new($node);
$other->send('SELECT status FROM move_indexes(' . "'t_pkey', '" . elsewhere($node, 't_pkey') . "')");
poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't', 'a job of the table waits');
my $there = elsewhere($node, 't_long');
(undef, $err) = answer('on', "SET lock_timeout = '300ms'; ALTER INDEX t_long SET TABLESPACE $there;");
like($err, qr/^ERROR:  55P03: canceling statement due to lock timeout\nDETAIL:  Another job moves a table of the statement; see /m,
	'beside another job: lock_timeout');
$caller->send("ALTER INDEX t_long SET TABLESPACE $there");
poll_until($node,
	"SELECT wait_event_type FROM pg_stat_activity WHERE query LIKE 'ALTER INDEX t_long%' AND state = 'active' AND wait_event IS NOT NULL",
	'Extension', 'beside another job: waits');
poll_until($node, 'SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE pid = ' . $caller->pid, 't',
	'beside another job: without a snapshot');
$holder->run('COMMIT');
$other->answer;
$caller->answer;
is(join(' ', $caller->errors =~ /ERROR.*/g, place('t_long')), $there, 'beside another job: moved in the end');

# .. ALL waits for each of its relations before it moves the first, as core, which takes all locks first
foreach my $mode ('off', 'on')
{
	my ($caller, $other) = map { IndexMover::Session->new($node) } 1, 2;

	sql("CREATE TABLE all$_ (i int) TABLESPACE regress_slow; ALTER TABLE all$_ OWNER TO regress_few") foreach 1, 2;
	sql('CREATE INDEX all2_i ON all2 (i) TABLESPACE regress_slow');
	my $before = jobs();
	$holder->run('BEGIN; SELECT FROM all2');
	$other->send("SELECT status FROM move_indexes('all2_i', 'regress_fast')");
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't', "$mode, all: another job waits");
	$caller->run("SET index_mover.online_alter = $mode");
	$caller->send('ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_few SET TABLESPACE regress_fast');
	sql('SELECT pg_sleep(1.5)');
	is(place('all1') . ' ' . place('all2') . ' ' . $caller->has_answered, 'regress_slow regress_slow 0',
		"$mode, all, beside another job of one: waits, and has moved none");
	$holder->run('COMMIT');
	$_->answer foreach $other, $caller;
	like($caller->errors, qr/^NOTICE:  .*waiting for job \d+, which moves relations of the same table$/m, 'all, beside another job: told')
	  if $mode eq 'on';
	unlike($caller->errors, qr/ERROR/, "$mode, all, beside another job: no ERROR");
	is(place('all1') . ' ' . place('all2') . ' ' . (jobs() - $before), 'regress_fast regress_fast ' . ($mode eq 'on' ? 2 : 1),
		"$mode, all, beside another job: moved in the end, by one job");
	sql('DROP TABLE all1, all2');
	$_->end foreach $caller, $other;
}

# ---- others ---------------------------------------------------------------------------
sql('SELECT pg_stat_statements_reset()');
answer('on', "ALTER TABLE t SET TABLESPACE $from;");
is(sql(q(SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE 'ALTER TABLE t SET TABLESPACE%')), '1',
	'pg_stat_statements counts it once');
# what a hook below ours is called with, and when; and one above
SKIP:
{
	my $library = "$PostgreSQL::Test::Utils::tmp_check/utility_hook.so";
	my $messages = '';
	chomp(my $headers = `pg_config --includedir-server`);
	skip 'cannot compile t/utility_hook.c', 6
	  unless IPC::Run::run(
		[ $ENV{CC} || 'cc', '-shared', '-fPIC', '-O1', "-I$headers", '-o', $library, "$FindBin::RealBin/utility_hook.c" ],
		'>&', \$messages);
	foreach my $order (qq("$library", index_mover), qq(index_mover, "$library"))
	{
		my $is_below = $order !~ /^index_mover/;
		my $statement = 'ALTER TABLE t SET TABLESPACE ' . other_place(place('t')) . ';';

		$node->append_conf('postgresql.conf', "shared_preload_libraries = '$order'\n");
		$node->restart;
		my $log_before = -s $node->logfile;
		answer('require', $statement);
		my @events = slurp_file($node->logfile, $log_before) =~ /utility hook: (ALTER .*)|: (moved) table "public\.t"/g;
		@events = grep { defined } @events;
		is(join(' / ', @events), $is_below ? "moved / $statement, as a subcommand" : "$statement / moved",
			$is_below ? 'a hook below ours is called after the job, with a subcommand' : 'a hook above ours is called before the job');
		$log_before = -s $node->logfile;
		my $user = IndexMover::Session->new($node);
		$user->run('BEGIN; SELECT FROM t LIMIT 1');
		answer('require', "SET lock_timeout = '300ms'; ALTER TABLE t SET TABLESPACE " . other_place(place('t')) . ';');
		$user->end;
		is(scalar(() = slurp_file($node->logfile, $log_before) =~ /utility hook: ALTER/g), $is_below ? 0 : 1,
			'a move that fails: a hook ' . ($is_below ? 'below ours is not called' : 'above ours is'));
	}
	# Citus has its hook below ours, and warns of ALL IN TABLESPACE, and of nothing that it carries out itself
	$node->append_conf('postgresql.conf', qq(shared_preload_libraries = '"$library", index_mover'\n));
	$node->restart;
	sql(q{SET allow_system_table_mods = on; INSERT INTO pg_extension
	  SELECT 1, 'citus', extowner, extnamespace, false, '13.2', NULL, NULL FROM pg_extension WHERE extname = 'plpgsql'});
	foreach my $case ([ 't', 0 ], [ 'ALL IN TABLESPACE %s OWNED BY regress_other', 1 ])
	{
		my ($what, $times) = @$case;
		my $log_before = -s $node->logfile;
		answer('require', sprintf "ALTER TABLE $what SET TABLESPACE %s;", ($times ? place('t') : ()), other_place(place('t')));
		is(scalar(() = slurp_file($node->logfile, $log_before) =~ /utility hook: ALTER/g), $times, "the hook of Citus, ALTER TABLE $what");
	}
	sql(q{SET allow_system_table_mods = on; DELETE FROM pg_extension WHERE extname = 'citus'});
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover, pg_stat_statements'\n");
	$node->restart;
}
# below ours: also of a statement of which a part is left to core
{
	my $all = 'ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_other SET TABLESPACE regress_fast';
	my $to = other_place(place('t'));

	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_stat_statements, index_mover'\n");
	$node->restart;
	sql('CREATE TABLE counted (i int) TABLESPACE regress_slow; CREATE UNLOGGED TABLE uncounted (i int) TABLESPACE regress_slow');
	sql("ALTER TABLE $_ OWNER TO regress_other") foreach 'counted', 'uncounted';
	sql('SELECT pg_stat_statements_reset()');
	$before = jobs();
	answer('require', "ALTER TABLE t SET TABLESPACE $to;");
	answer('on', "$all;");
	is(join(' ', jobs() - $before, map { place($_) } 'counted', 'uncounted'), '2 regress_fast regress_fast',
		'pg_stat_statements before index_mover: online');
	is(sql(q(SELECT query, calls FROM pg_stat_statements WHERE query ~ '^ALTER TABLE (t|ALL IN TABLESPACE) ' ORDER BY query)),
		"$all|1\nALTER TABLE t SET TABLESPACE $to|1", 'pg_stat_statements before index_mover counts it once, as it was sent');
	sql('DROP TABLE counted, uncounted');
}
# the statement and its objects, as hooks above and below ours record them
SKIP:
{
	chomp(my $libraries = `pg_config --pkglibdir`);
	skip 'pgaudit is not installed', 6 unless -f "$libraries/pgaudit.so";
	my $all = 'ALTER INDEX ALL IN TABLESPACE regress_slow OWNED BY regress_owner SET TABLESPACE regress_fast';

	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover, pgaudit'\npgaudit.log = 'ddl'\n");
	$node->restart;
	sql('CREATE EXTENSION pgaudit');
	sql("ALTER INDEX ALL IN TABLESPACE $_ OWNED BY regress_owner SET TABLESPACE regress_slow") foreach 'regress_fast', 'pg_default';
	my $log_before = -s $node->logfile;
	$before = jobs();
	my $to = other_place(place('t'));
	answer('require', "ALTER TABLE t SET TABLESPACE $to;");
	answer('require', "$all;");
	is(jobs() - $before, 2, 'pgaudit after index_mover: online');
	my @audited = slurp_file($node->logfile, $log_before) =~ /AUDIT: SESSION,\d+,\d+,DDL,(ALTER.*?);,<not logged>/g;
	is(join("\n", sort @audited),
		join("\n", map({ "ALTER INDEX,INDEX,public.$_,$all" } qw(p1_id_idx p_id t_long t_pkey)),
			"ALTER TABLE,TABLE,public.t,ALTER TABLE t SET TABLESPACE $to"),
		'pgaudit logs each object once, with the statement as it was sent');
	sql('ALTER SYSTEM SET index_mover.online_alter = on; SELECT pg_reload_conf()');
	is(sql("SELECT count(*) FROM index_mover_check() WHERE kind = 'online alter'"), '0', 'check: the order is right');
	my $wrong = 'pgaudit|no statement is carried out online, since pgaudit would not see it: '
	  . 'list index_mover before pgaudit in shared_preload_libraries';
	foreach my $order ("shared_preload_libraries = 'pgaudit, index_mover'",
		"shared_preload_libraries = '\$libdir/pgaudit'\nsession_preload_libraries = index_mover")
	{
		$node->append_conf('postgresql.conf', "$order\n");
		$node->restart;
		is(sql(q(SELECT object, detail FROM index_mover_check() WHERE kind = 'online alter')), $wrong, "check: $order");
		my (undef, $refused) = answer('require', 'ALTER TABLE t SET TABLESPACE ' . other_place(place('t')) . ';');
		like($refused, qr/$refusal pgaudit would not see it/, "require: $order");
	}
	sql('ALTER SYSTEM RESET index_mover.online_alter; DROP EXTENSION pgaudit');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = index_mover\nsession_preload_libraries = ''\n");
	$node->restart;
}
sql('CREATE DATABASE bare');
$node->safe_psql('bare', 'CREATE TABLE b (i int)');
($out, $err) = answer('on', 'ALTER TABLE b SET TABLESPACE regress_fast;', db => 'bare');
is("$out|$err", 'ALTER TABLE|', 'no extension, on: core');
($out, $err) = answer('on', 'BEGIN; ALTER TABLE b SET TABLESPACE pg_default; ROLLBACK;', db => 'bare');
unlike($err, qr/NOTICE/, 'no extension, on, in a block: core');
($out, $err) = answer('require', 'ALTER TABLE b SET TABLESPACE regress_slow;', db => 'bare');
like($err, qr/^ERROR:  55000: $refusal Extension index_mover is not installed in this database\./m,
	'no extension, require: refused');
# a setting that has no effect
sub check_says { return sql(q(SELECT object, detail FROM index_mover_check() WHERE kind = 'online alter')); }
sql('ALTER ROLE regress_owner IN DATABASE postgres SET index_mover.online_alter = on');
is(check_says(), '', 'check: the library is preloaded');
like(join('|', answer('on', 'SET default_transaction_read_only = on; ALTER TABLE t SET TABLESPACE regress_fast;')),
	qr/ERROR:  25006: cannot execute ALTER TABLE in a read-only transaction/, 'read only: as core');
all_right($node, 't', 'at the end', no_metadata => 1);

# where no job can run, the hook does nothing
{
	my $to = other_place(place('t'));
	my $data = $node->data_dir;
	my $single = "$data/single.sql";
	my $before = jobs();
	my $standby;

	$node->backup('base');
	$standby = PostgreSQL::Test::Cluster->new('online_alter_standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my (undef, undef, $said) = $standby->psql('postgres', "SET index_mover.online_alter = require; ALTER TABLE t SET TABLESPACE $to");
	like($said, qr/ERROR:  cannot execute ALTER TABLE in a read-only transaction/, 'a standby: as core');
	$standby->stop;
	$node->stop;
	append_to_file($single, "ALTER TABLE t SET TABLESPACE $to\n");
	my ($log, $err);
	IPC::Run::run([ 'postgres', '--single', '-D', $data, '-c', 'index_mover.online_alter=require', 'postgres' ], '<', $single, '>', \$log,
		'2>', \$err);
	unlike($err, qr/ERROR|cannot be carried out/, 'single-user mode: as core');
	# nor in the servers of pg_upgrade, which make no new files: a partitioned table has none
	system_or_bail('pg_ctl', '-w', '-D', $data, '-l', $node->logfile, '-o', '-b -c index_mover.online_alter=require', 'start');
	(undef, undef, $said) = $node->psql('postgres', 'ALTER TABLE p SET TABLESPACE regress_fast');
	is($said, '', 'the server of pg_upgrade: as core');
	system_or_bail('pg_ctl', '-w', '-D', $data, 'stop');
	$node->start;
	is(place('t'), $to, 'single-user mode: moved');
	is(place('p') . ' ' . (jobs() - $before), 'regress_fast 0', 'the server of pg_upgrade: no job');
	sql('ALTER TABLE p SET TABLESPACE regress_slow');
}
# nor in the apply of logical replication, whose triggers can have the statement
{
	my $before = jobs();
	$node->append_conf('postgresql.conf', 'wal_level = logical');
	$node->restart;
	sql('CREATE DATABASE regress_publisher');
	my $publisher = sub { return $node->safe_psql('regress_publisher', $_[0]) };
	$publisher->('CREATE TABLE r (id int PRIMARY KEY); CREATE PUBLICATION regress_r FOR TABLE r');
	$publisher->("SELECT pg_create_logical_replication_slot('regress_r', 'pgoutput')");
	sql(<<'SQL');
CREATE TABLE r (id int PRIMARY KEY);
CREATE TABLE by_trigger (id int);
CREATE FUNCTION regress_move() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN ALTER TABLE public.by_trigger SET TABLESPACE regress_fast; RETURN NULL; END';
CREATE TRIGGER moves AFTER INSERT ON r FOR EACH ROW EXECUTE FUNCTION regress_move();
ALTER TABLE r ENABLE ALWAYS TRIGGER moves;
ALTER DATABASE postgres SET index_mover.online_alter = 'require';
SQL
	my (undef, $here) = answer('require', 'INSERT INTO r VALUES (0);');
	like($here, qr/^ERROR:  55000: $refusal|^ERROR:  25001: $refusal/m, 'a trigger in a session, require: refused');
	sql("CREATE SUBSCRIPTION regress_r CONNECTION \$\$" . $node->connstr('regress_publisher') . "\$\$ PUBLICATION regress_r"
		  . ' WITH (create_slot = false, copy_data = false)');
	$publisher->('INSERT INTO r VALUES (1)');
	poll_until($node, 'SELECT count(*) FROM r', 1, 'a trigger in the apply of logical replication: as core');
	is(place('by_trigger') . ' ' . (jobs() - $before), 'regress_fast 0', 'a trigger in the apply of logical replication: no job');
	sql($_) foreach 'DROP SUBSCRIPTION regress_r', 'ALTER DATABASE postgres RESET index_mover.online_alter',
	  'DROP TABLE r, by_trigger', 'DROP FUNCTION regress_move()', 'DROP DATABASE regress_publisher';
}
# nor in the workers of jobs, where a trigger function can have it
SKIP:
{
	skip 'no event triggers for REINDEX', 2 if $node->pg_version < 17;
	sql(<<'SQL');
CREATE TABLE by_trigger (id int) TABLESPACE regress_slow;
CREATE FUNCTION move_too() RETURNS event_trigger LANGUAGE plpgsql AS
	'BEGIN ALTER TABLE public.by_trigger SET TABLESPACE regress_fast; END';
CREATE EVENT TRIGGER moves ON ddl_command_end WHEN TAG IN ('REINDEX') EXECUTE FUNCTION move_too();
ALTER DATABASE postgres SET index_mover.online_alter = 'require';
SQL
	my $before = jobs();
	is(sql("SELECT status FROM move_indexes('t_pkey', '" . elsewhere($node, 't_pkey') . "', method => 'rebuild')"), 'moved',
		'a trigger in the worker of a job: as core');
	is(place('by_trigger') . ' ' . (jobs() - $before), 'regress_fast 1', 'a trigger in the worker of a job: no other job');
	sql($_) foreach 'DROP EVENT TRIGGER moves', 'ALTER DATABASE postgres RESET ALL', 'DROP TABLE by_trigger';
}
# without a free worker
{
	my $to = other_place(place('t'));
	my $before = jobs();

	$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
	$node->restart;
	my (undef, $refused) = answer('require', "ALTER TABLE t SET TABLESPACE $to;");
	like($refused, qr/^ERROR:  53000: $refusal No job can begin: .*\.\nHINT:  .*max_worker_processes/m, 'no free worker, require: refused');
	my (undef, $told) = answer('on', "ALTER TABLE t SET TABLESPACE $to;");
	like($told, qr/$notice No job can begin: .* An exclusive lock is held while/, 'no free worker, on: told');
	is(place('t') . ' ' . (jobs() - $before), "$to 0", 'no free worker, on: done by core');
	$node->append_conf('postgresql.conf', "max_worker_processes = 32\n");
}

# without the library at the start of sessions
my ($libraries) = run_command([ 'pg_config', '--pkglibdir' ]);
my $not_loaded = 'index_mover.online_alter is set, but its sessions do not load the library: see session_preload_libraries';
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
is(check_says(), "role regress_owner in database postgres|$not_loaded", 'check: the library is not loaded');
sql("ALTER ROLE regress_owner IN DATABASE postgres SET session_preload_libraries = 'auto_explain, index_mover'");
is(check_says(), '', 'check: the role loads it');
sql('ALTER ROLE regress_owner IN DATABASE postgres RESET session_preload_libraries');
foreach my $whose ('ROLE regress_owner', 'DATABASE postgres')
{
	sql("ALTER $whose SET session_preload_libraries = '$libraries/index_mover'");
	is(check_says(), '', "check: $whose loads it by its full path");
	sql("ALTER ROLE regress_owner IN DATABASE postgres SET session_preload_libraries = 'auto_explain'");
	is(check_says(), "role regress_owner in database postgres|$not_loaded", "check: $whose loads it, and the role has another list here");
	sql("ALTER ROLE regress_owner IN DATABASE postgres RESET session_preload_libraries; ALTER $whose RESET session_preload_libraries");
}
# stored as it was typed
foreach my $value ('ON', 'Require', 'OFF')
{
	sql("LOAD 'index_mover'; ALTER ROLE regress_owner IN DATABASE postgres SET index_mover.online_alter = '$value'");
	is(check_says(), $value eq 'OFF' ? '' : "role regress_owner in database postgres|$not_loaded", "check: a role with $value");
}
sql('ALTER ROLE regress_owner IN DATABASE postgres RESET index_mover.online_alter');
foreach my $place ('postgresql.conf', 'the command line')
{
	foreach my $value ('OFF', 'ON')
	{
		my $is_file = $place eq 'postgresql.conf';

		$node->append_conf('postgresql.conf', "index_mover.online_alter = '$value'\n") if $is_file;
		$node->stop;
		$node->append_conf('postgresql.conf', "index_mover.online_alter = off\n") unless $is_file;
		system_or_bail('pg_ctl', '-w', '-D', $node->data_dir, '-l', $node->logfile, '-o',
			'--cluster-name=online_alter' . ($is_file ? '' : " -c index_mover.online_alter=$value"), 'start');
		is(check_says(), $value eq 'ON' ? "the server|$not_loaded" : '', "check: $value in $place");
		system_or_bail('pg_ctl', '-w', '-D', $node->data_dir, 'stop');
		$node->start;
	}
}
$node->append_conf('postgresql.conf', "index_mover.online_alter = on\n");
$node->reload;
poll_until($node, q(SELECT object, detail FROM index_mover_check() WHERE kind = 'online alter'), "the server|$not_loaded",
	'check: the server does not');
done_testing();
