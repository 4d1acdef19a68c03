# What others define while a move is on its way.  First DDL of every kind on the table,
# in the middle of a copy and in the middle of a rebuild: the index is moved, or its
# row says why not, with the SQLSTATE that the docs name; the DDL comes through as
# soon as the move goes on, or at once where the move's locks are not in its way; and
# the catalogs say afterwards what they say where the same was done without a move.
# Each command is run twice, on tables of the same names: without a move, for the
# metadata to compare with, and beside one.
#
# Then what is not the table itself: the tablespaces, the database, triggers, rules and
# event triggers, roles; a copy that cannot keep up with those who write; and what a
# rebuild does that finds something else under the names it gives to core.
#
# Fault (locks): DDL of every kind on the table: 45 commands in mid-copy and in mid-rebuild,
#   each compared with what it does where nothing moves
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
use Time::HiRes qw(time usleep);

needs_test_points();

my $node = new_node('ddl', conf => "deadlock_timeout = 500ms\n");
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE dd_owner SUPERUSER;
CREATE ROLE dd_other;
CREATE SCHEMA elsewhere;
CREATE FUNCTION quiet() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
SQL

my $setup = <<'SQL';
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS dd CASCADE;
DROP TABLE IF EXISTS elsewhere.t;
SET ROLE dd_owner;
CREATE SCHEMA dd;
CREATE TABLE dd.u (id int PRIMARY KEY);
INSERT INTO dd.u SELECT g FROM generate_series(1, 50) g;
CREATE %kind% TABLE dd.t (id int NOT NULL PRIMARY KEY, k int NOT NULL, v int, s text);
ALTER TABLE dd.t ADD CONSTRAINT t_v CHECK (v > 0) NOT VALID, ADD CONSTRAINT t_u FOREIGN KEY (k) REFERENCES dd.u NOT VALID;
CREATE TRIGGER t_quiet BEFORE INSERT ON dd.t FOR EACH ROW EXECUTE FUNCTION public.quiet();
INSERT INTO dd.t SELECT g, 1 + g % 50, g, md5(g::text) FROM generate_series(1, 300) g;
CREATE UNIQUE INDEX t_k ON dd.t (k, id) TABLESPACE regress_slow;
COMMENT ON INDEX dd.t_k IS 'moves';
CREATE TABLE dd.p (id int NOT NULL, k int NOT NULL, v int, s text) PARTITION BY RANGE (id);
CREATE UNIQUE INDEX p_k ON ONLY dd.p (k, id);
RESET ROLE;
SQL
my $attach = "ALTER TABLE dd.p ATTACH PARTITION dd.t FOR VALUES FROM (1) TO (100000)";

# What becomes of the index.
my $moved = qr/^moved\|$/;
my $gone = qr/^skipped\|42704$/;
my $gave_way = qr/^failed\|55006$/;

# The command; whether it has to wait until a copy goes on, and what becomes of
# the index (one that it replaces is moved, too); what becomes of it in a rebuild, for whose end any of
# them waits, or for which it gives way.  Options: kind, before: of the table; table,
# index: what they are called afterwards, '' if they are gone.
my @ddl = (
	[ 'ALTER TABLE dd.t SET LOGGED', 0, undef, $gave_way, kind => 'UNLOGGED' ],
	[ 'ALTER TABLE dd.t SET UNLOGGED', 1, qr/^skipped\|0A000$/, $gave_way ],
	[ 'ALTER TABLE dd.t VALIDATE CONSTRAINT t_v', 0, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t VALIDATE CONSTRAINT t_u', 0, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t DISABLE TRIGGER t_quiet', 0, $moved, $gave_way ],
	[ 'CREATE TRIGGER t_new BEFORE UPDATE ON dd.t FOR EACH ROW EXECUTE FUNCTION quiet()', 0, $moved, $gave_way ],
	[ 'DROP TRIGGER t_quiet ON dd.t', 1, $moved, $gave_way ],
	[ $attach, 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.p DETACH PARTITION dd.t', 1, $moved, $gave_way, before => $attach ],
	[ 'ALTER TABLE dd.p DETACH PARTITION dd.t CONCURRENTLY', 1, $moved, $gave_way, before => $attach, wait => 0 ],
	[ 'ALTER INDEX dd.p_k ATTACH PARTITION dd.t_k', 1, $moved, $gave_way,
		before => "DROP INDEX dd.p_k; $attach; CREATE UNIQUE INDEX p_k ON ONLY dd.p (k, id)" ],
	[ 'DROP SCHEMA dd CASCADE', 1, $gone, $gave_way, table => '' ],
	[ 'DROP OWNED BY dd_owner CASCADE', 1, $gone, $gave_way, table => '' ],
	[ 'DROP TABLE dd.t', 1, $gone, $gave_way, table => '' ],
	[ 'DROP INDEX dd.t_k', 1, $gone, $gave_way, index => '' ],
	[ 'DROP INDEX CONCURRENTLY dd.t_k', 1, $gone, $gave_way, index => '' ],
	[ 'DROP INDEX CONCURRENTLY dd.t_s', 0, $moved, $gave_way, wait => 0, before => 'CREATE INDEX t_s ON dd.t (s)' ],
	[ 'CREATE INDEX t_new ON dd.t (v)', 0, $moved, $gave_way ],
	[ 'CREATE INDEX CONCURRENTLY t_new ON dd.t (v)', 0, $moved, $gave_way, wait => 0 ],
	[ 'REINDEX TABLE dd.t', 1, $moved, $gave_way ],
	[ 'REINDEX INDEX CONCURRENTLY dd.t_k', 1, $moved, $gave_way, wait => 0 ],
	[ 'REINDEX TABLE CONCURRENTLY dd.t', 1, $moved, $gave_way, wait => 0 ],
	[ 'ALTER TABLE dd.t REPLICA IDENTITY USING INDEX t_k', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t CLUSTER ON t_k', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t ADD CONSTRAINT t_k UNIQUE USING INDEX t_k', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t SET TABLESPACE regress_fast', 1, $moved, $gave_way ],
	[ 'ALTER INDEX dd.t_k SET TABLESPACE pg_default', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t ADD COLUMN more int DEFAULT 7', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t DROP COLUMN v', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t DROP COLUMN k', 1, $gone, $gave_way, index => '' ],
	[ 'ALTER TABLE dd.t ALTER v TYPE bigint', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t ALTER k TYPE bigint', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t RENAME TO renamed', 1, $moved, $gave_way, table => 'dd.renamed' ],
	[ 'ALTER TABLE dd.t SET SCHEMA elsewhere', 1, $moved, $gave_way, table => 'elsewhere.t', index => 'elsewhere.t_k' ],
	[ 'ALTER TABLE dd.t OWNER TO dd_other', 1, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t SET (fillfactor = 60)', 0, $moved, $gave_way ],
	[ 'ALTER TABLE dd.t ENABLE ROW LEVEL SECURITY', 1, $moved, $gave_way ],
	[ 'ALTER INDEX dd.t_k RENAME TO t_renamed', 1, $moved, $gave_way, index => 'dd.t_renamed' ],
	[ 'ALTER INDEX dd.t_k SET (fillfactor = 60)', 1, $moved, $gave_way ],
	[ 'COMMENT ON INDEX dd.t_k IS \'other\'', 1, $moved, $gave_way ],
	[ 'CLUSTER dd.t USING t_k', 1, $moved, $gave_way ],
	[ 'VACUUM FULL dd.t', 1, $moved, $gave_way ],
	[ 'VACUUM (FREEZE) dd.t', 0, $moved, $moved ],
	[ 'ANALYZE dd.t', 0, $moved, $gave_way ],
	[ "TRUNCATE dd.t; INSERT INTO dd.t SELECT g, 1 + g % 50, g, 'new' FROM generate_series(1, 100) g", 1, $moved, $gave_way ],
);

my %point = (copy => 'copy-half', rebuild => 'rebuild-entry-committed');

sub new_tables
{
	my ($kind, $before) = @_;
	(my $sql = $setup) =~ s/%kind%/$kind/;
	$node->safe_psql('postgres', $sql . "SET ROLE dd_owner; $before");
	return;
}

sub one_case
{
	my ($method, $ddl, $row, $waits, %options) = @_;
	my $name = "$ddl in mid-$method";
	my $table = exists $options{table} ? $options{table} : 'dd.t';
	my $index = $table eq '' ? '' : exists $options{index} ? $options{index} : 'dd.t_k';
	my @tables = ($options{kind} || '', $options{before} || '');

	new_tables(@tables);
	$node->safe_psql('postgres', $_) foreach split /; /, $ddl;
	$node->safe_psql('postgres', "SELECT oracle.remember_metadata('$table')") if $table;

	new_tables(@tables);
	# what waits for all transactions must not wait for the one that waits for the move
	my $waits_for_move = exists $options{wait} ? $options{wait} : 1;
	my $holder = IndexMover::Session->new($node);
	$holder->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $move = "move_indexes('dd.t_k', 'regress_fast', method => '$method'";
	my $call = $waits_for_move ? start_call($node, 'mover', "SELECT status, sqlstate, detail FROM $move)") : undef;
	my $job = $waits_for_move ? undef : $node->safe_psql('postgres', "SELECT job FROM $move, wait => false)");
	$node->wait_for_log(qr/test point "$point{$method}": waiting/, $log);

	my $session = IndexMover::Session->new($node);
	$session->send($ddl);
	my $look = 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid;
	my $start = time;
	my $waited = 0;
	until ($waited || $session->has_answered)
	{
		$waited = $holder->run($look) eq 't' ? 1 : 0;
		# not for a moment, as one that waits for a transaction that is just ending
		usleep(200_000), $waited = $holder->run($look) eq 't' && !$session->has_answered ? 1 : 0 if $waited;
		usleep(20_000);
		die "$name: neither done nor waiting" if time - $start > $IndexMover::Test::TIMEOUT;
	}
	is($waited, $waits, "$name: " . ($waits ? 'it waits for the move to go on' : 'it does not wait'));
	$holder->end;
	$start = time;
	$session->answer;
	soon_ok(time - $start, 5, "$name: it is done soon after the move goes on") if $waited;
	unlike($session->errors, qr/ERROR|FATAL/, "$name: without an error");
	my ($out, $err) = ('', '');
	if ($waits_for_move)
	{
		(undef, $out, $err) = finish_call($call);
	}
	else
	{
		$node->safe_psql('postgres', "CALL wait_for_move($job, raise => false)");
		$out = $node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job");
	}
	like($out =~ s/^([^|]*\|[^|]*)\|.*$/$1/sr, $row, "$name: the row") or diag "$out $err";
	unlike("$out $err", qr/XX000|cache lookup failed|could not open relation/, "$name: nothing that a user cannot understand");
	$session->end;
	if ($index)
	{
		my $to = $node->safe_psql('postgres',
			"SELECT CASE t.spcname WHEN 'regress_fast' THEN 'regress_slow' ELSE 'regress_fast' END FROM pg_class c LEFT JOIN "
				. "pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = '$index'::regclass");
		my $by = $node->safe_psql('postgres', "SELECT relpersistence FROM pg_class WHERE oid = '$index'::regclass") eq 'u' ? 'rebuild'
			: $method;
		survived_ok($node, $table, $name, "SELECT status FROM move_indexes('$index', '$to', method => '$by')",
			max_keys => 30);
	}
	else
	{
		wait_for_no_worker($node);
		leftovers_ok($node, $name, within => 5);
		files_ok($node, $name);
		if ($table)
		{
			metadata_ok($node, $table, $name);
			verdict_ok($node, $table, $name, max_keys => 30);
		}
		is($node->safe_psql('postgres', "SELECT to_regclass('dd.t_k') IS NULL"), 't', "$name: the index is gone");
	}
	count_fault("DDL in mid-$method");
	return;
}

# where they stand still as long as a session holds the lock
set_test_point($node, join ',', map { "$_:wait" } values %point);
foreach my $case (
	picked
	{
		$_->[0] =~ /^(?:DROP (?:TABLE|INDEX)|REINDEX TABLE CONC|VACUUM FULL|TRUNCATE)|SET UNLOGGED|ALTER k TYPE|RENAME TO/
		  || $_->[0] =~ /TABLE dd\.t SET TABLESPACE|ATTACH PARTITION dd\.t |VALIDATE CONSTRAINT t_v/
	}
	'commands in mid-copy', grep { $_->[2] } @ddl)
{
	my ($ddl, $waits, $copy, undef, %options) = @$case;
	one_case('copy', $ddl, $copy, $waits, %options);
}
# a rebuild gives way to all of them alike
foreach my $case (picked { $_->[0] =~ /^(?:DROP INDEX|REINDEX TABLE|VACUUM|TRUNCATE)/ } 'commands in mid-rebuild', @ddl)
{
	my ($ddl, undef, undef, $rebuild, %options) = @$case;
	one_case('rebuild', $ddl, $rebuild, 1, %options);
}

# A rebuild has given way, and before it looks how far it has come, the DDL has made
# a valid index of the unfinished one: that is no swap.
{
	my $ddl = 'REINDEX TABLE dd.t';
	my $name = "$ddl before the rebuild looks what has become of it";
	new_tables('', '');
	my @holders = map { IndexMover::Session->new($node) } 1 .. 2;
	$holders[$_ - 1]->run('SELECT pg_advisory_lock(0, ' . (5958 + $_) . ')') foreach 1, 2;
	set_test_point($node, 'rebuild-entry-committed:wait,rebuild-aborted:wait2');
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', "SELECT status, sqlstate FROM move_indexes('dd.t_k', 'regress_fast', method => 'rebuild')");
	$node->wait_for_log(qr/test point "rebuild-entry-committed": waiting/, $log);
	my $session = IndexMover::Session->new($node);
	$session->send($ddl);
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid, 't', "$name: it waits");
	$holders[0]->end;
	$node->wait_for_log(qr/test point "rebuild-aborted": waiting/, $log);
	$session->answer;
	is($session->errors, '', "$name: it is done");
	is($node->safe_psql('postgres', "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('dd.t_k_ccnew')"), 't',
		"$name: the unfinished index is valid");
	$holders[1]->end;
	my ($rc, $out, $err) = finish_call($call);
	like($out, $gave_way, "$name: the row") or diag $err;
	is(tablespace_of_index($node, 'dd.t') =~ /^t_k: (.*)$/m ? $1 : '', 'regress_slow', "$name: the index is where it was");
	set_test_point($node, '');
	$session->end;
	$node->safe_psql('postgres', "SELECT oracle.remember_metadata('dd.t')");
	survived_ok($node, 'dd.t', $name, "SELECT status FROM move_indexes('dd.t_k', 'regress_fast', method => 'rebuild')", max_keys => 30);
}

# ---- what is not the table -----------------------------------------------------------
# (nothing else may be in the tablespaces; a few rows, on as many blocks as it takes for
# a copy that is to be slow)
$node->safe_psql('postgres', 'DROP SCHEMA dd, elsewhere CASCADE');
$node->safe_psql('postgres', <<SQL);
CREATE ROLE mover LOGIN;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover;
GRANT CREATE ON SCHEMA public TO mover;
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO mover;
SET ROLE mover;
CREATE TABLE d (i int, s text);
INSERT INTO d SELECT g, md5(g::text) FROM generate_series(1, 5000) g;
CREATE INDEX d_s ON d (s) WITH (fillfactor = 20) TABLESPACE regress_slow;
RESET ROLE;
SELECT oracle.remember_keys('d'), oracle.remember_metadata('d');
SQL
my $KIND = 'DDL beside a copy';

sub verbose_with
{
	my ($sql, $to) = @_;
	$sql =~ s/%target%/$to/g;
	return "\\set VERBOSITY verbose\n$sql";
}

# Do something while the copy stands still at $point, let it go on, look at the row.
sub beside
{
	my ($name, $point, $do, $row, %options) = @_;
	my $to = elsewhere($node, 'd_s');
	my $call = held_at($node, $point, "SELECT status, sqlstate FROM move_indexes('d_s', '$to', method => 'copy')", user => $options{user});
	my ($rc, $out, $err);
	if ($options{waits})
	{
		# the copy lets it pass when it goes on
		my $session = IndexMover::Session->new($node);
		$session->send($do);
		poll_until($node, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = " . $session->pid, 't', "$name: it waits");
		let_go($call);
		$session->answer;
		($rc, $err) = ($session->errors =~ /ERROR/ ? 1 : 0, $session->errors);
		$session->end;
	}
	else
	{
		($rc, $out, $err) = $node->psql('postgres', verbose_with($do, $to));
	}
	$options{errors} ? like($err, $options{errors}, "$name: is refused") : is($rc, 0, "$name: is done") || diag $err;
	let_go($call);
	($rc, $out, $err) = finish_call($call);
	like($out, $row, "$name: the row") or diag $err;
	$node->safe_psql('postgres', verbose_with($options{undo}, $to)) if $options{undo};
	survived_ok($node, 'd', $name, "SELECT status FROM move_indexes('d_s', '" . elsewhere($node, 'd_s') . "', method => 'copy')",
		max_keys => 100, count => $KIND);
	return;
}

beside('the target is renamed', 'copy-half', 'ALTER TABLESPACE %target% RENAME TO regress_other', qr/^moved\|$/,
	undo => 'ALTER TABLESPACE regress_other RENAME TO %target%');
beside('the target gets another owner', 'copy-half', 'ALTER TABLESPACE %target% OWNER TO mover', qr/^moved\|$/,
	undo => 'ALTER TABLESPACE %target% OWNER TO postgres; GRANT CREATE ON TABLESPACE %target% TO mover');
beside('the right on the target is revoked', 'copy-half', 'REVOKE CREATE ON TABLESPACE %target% FROM mover', qr/^(failed\|42501|moved\|)$/,
	user => 'mover', undo => 'GRANT CREATE ON TABLESPACE %target% TO mover');
beside('the target is dropped', 'copy-half', 'DROP TABLESPACE %target%', qr/^moved\|$/, errors => qr/55000/);
beside('triggers and rules on the table', 'copy-half', <<'SQL', qr/^moved\|$/, waits => 1,
CREATE FUNCTION d_t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
CREATE TRIGGER d_t BEFORE UPDATE ON d FOR EACH ROW EXECUTE FUNCTION d_t();
CREATE RULE d_r AS ON DELETE TO d DO INSTEAD NOTHING;
SQL
	undo => 'DROP TRIGGER d_t ON d; DROP RULE d_r ON d; DROP FUNCTION d_t()');
beside('an event trigger that refuses everything', 'copy-half', <<'SQL', qr/^moved\|$/,
CREATE FUNCTION d_e() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
CREATE EVENT TRIGGER d_e ON ddl_command_start WHEN TAG IN ('ALTER INDEX', 'CREATE INDEX', 'ALTER TABLE') EXECUTE FUNCTION d_e();
SQL
	undo => 'DROP EVENT TRIGGER d_e; DROP FUNCTION d_e()');
# others may use the database, so it cannot be a template, or go elsewhere
beside('the database as a template', 'copy-half', 'CREATE DATABASE copied TEMPLATE postgres', qr/^moved\|$/, errors => qr/55006/);
beside('the database is moved', 'copy-half', 'ALTER DATABASE postgres SET TABLESPACE regress_fast', qr/^moved\|$/,
	errors => qr/55006|0A000/);

# Other databases come and go: each backend has to close its files for that, and who
# drops one waits for all of them.  The copy's own loop does so: it runs, though slowly.
{
	my $name = 'other databases come and go';
	my $copying = "SELECT count(*) FROM index_mover_progress WHERE method = 'copy' AND phase = 'copying blocks'";
	my $call = start_call($node, 'slow', "SELECT status, sqlstate FROM move_indexes('d_s', '" . elsewhere($node, 'd_s')
		. "', method => 'copy', settings => '{\"max_rate\": \"8kB\"}')");
	poll_until($node, 'SELECT throttled_by FROM index_mover_progress', 'max_rate', "$name: the copy");
	my ($rc, $out, $err) = $node->psql('postgres', 'CREATE DATABASE other; DROP DATABASE other');
	is($rc, 0, "$name: is done") or diag $err;
	is($node->safe_psql('postgres', $copying), '1', "$name: the copy goes on meanwhile");
	$node->safe_psql('postgres', "SELECT alter_move(job, 'max_rate', '0') FROM index_mover_progress");
	($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: the row") or diag $err;
	survived_ok($node, 'd', $name, "SELECT status FROM move_indexes('d_s', '" . elsewhere($node, 'd_s') . "', method => 'copy')",
		max_keys => 100, count => $KIND);
}

# ---- a copy that cannot keep up -------------------------------------------------------
# Each transaction writes to every leaf of the index, and each megabyte of a round
# of the copy waits for some of them: what is left does not get less.  (How much is too much
# is 64 MB; here it is anything.)
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE busy (k int, v int) WITH (fillfactor = 50);
INSERT INTO busy SELECT g, 0 FROM generate_series(1, 20000) g;
CREATE INDEX busy_k ON busy (k) WITH (fillfactor = 10) TABLESPACE regress_slow;
CREATE INDEX busy_v ON busy (v);
SELECT oracle.remember_keys('busy'), oracle.remember_metadata('busy');
SQL
	cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('busy_k') / current_setting('block_size')::int"), '>', 300,
		'keeping up: enough blocks');
	$node->safe_psql('postgres', 'CREATE TABLE calm (v int); INSERT INTO calm VALUES (0)');
	append_to_file($node->basedir . '/busy.sql', "\\set r random(0, 19)\nUPDATE busy SET v = v + 1 WHERE k % 20 = :r;\n");
	append_to_file($node->basedir . '/calm.sql', "UPDATE calm SET v = v + 1;\n");
	my $output = '';
	my $start_load = sub {
		return IPC::Run::start([ 'pgbench', '-n', '-c', '1', '-T', '900', '-f', $node->basedir . "/$_[0].sql", $node->connstr('postgres') ],
			'>&', \$output, IPC::Run::timer($IndexMover::Test::TIMEOUT));
	};
	# not INT: pgbench ignores that where we were started in the background
	my $end_load = sub { $_[0]->signal('TERM'); eval { $_[0]->finish } };
	my ($load, $to, $rc, $out, $err);

	if (faults('a burst of writes that is waited out'))
	{
		$load = $start_load->('busy');

		# a burst of writes is waited out: many rounds in vain, then others write
		set_tests($node, test_point => 'copy-end:writes,copy-read-again:writes', test_mutation => 'busy');
		my $call = start_call($node, 'mover',
			q{SELECT status, sqlstate FROM move_indexes('busy_k', 'regress_fast', method => 'copy', settings => }
				. q{'{"max_lock_time": "1ms"}')});
		wait_for_phase($node, 'copying changed blocks');
		my $written = $node->safe_psql('postgres', 'SELECT sum(v) FROM busy');
		# each transaction changes 1,000 rows, each megabyte of a round waits for 25
		# transactions when it has been read
		poll_until($node, "SELECT sum(v) > $written + 600 * 1000 FROM busy", 't', 'many rounds');
		my $calm = $start_load->('calm');
		$end_load->($load);
		($rc, $out, $err) = finish_call($call);
		$end_load->($calm);
		is($out, "moved|\n", 'keeping up: a burst of writes is waited out') or diag $err;
		cmp_ok($node->safe_psql('postgres', 'SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1'), '>', 6 * 300,
			'keeping up: after many rounds');

		# time behind DDL is none in which writers outpace the copy
		set_tests($node, test_point => 'copy-end:writes,copy-read-again:writes', test_mutation => 'busy,hopeless-ms:30000');
		$load = $start_load->('busy');
		$to = elsewhere($node, 'busy_k');
		$call = start_call($node, 'mover', "SELECT status, sqlstate, detail FROM move_indexes('busy_k', '$to', method => 'copy', "
				. q{settings => '{"max_lock_time": "1ms"}')});
		wait_for_phase($node, 'copying changed blocks');
		$written = $node->safe_psql('postgres', 'SELECT sum(v) FROM busy');
		poll_until($node, "SELECT sum(v) > $written + 150 * 1000 FROM busy", 't', 'some rounds');
		my $ddl = IndexMover::Session->new($node);
		$ddl->run('BEGIN; ALTER INDEX busy_k SET (fillfactor = 10)');
		# what has changed by now is a round in vain
		$end_load->($load);
		sleep 31;
		$calm = $start_load->('calm');
		$ddl->run('COMMIT');
		$ddl->end;
		($rc, $out, $err) = finish_call($call);
		$end_load->($calm);
		is($out, "moved||\n", 'keeping up: DDL may take its time') or diag $err;
	}

	$to = elsewhere($node, 'busy_k');
	$load = $start_load->('busy');
	set_tests($node, test_point => 'copy-end:writes,copy-read-again:writes', test_mutation => 'busy,hopeless');
	($rc, $out, $err) = $node->psql('postgres',
		"SELECT status, sqlstate, detail FROM move_indexes('busy_k', '$to', method => 'copy', settings => '{\"max_lock_time\": \"1ms\"}')");
	like($out, qr/^failed\|55000\|copying index "busy_k" cannot keep up with the changes to it/, 'keeping up: the copy gives up')
		or diag $err;
	$end_load->($load);
	# a table of a row on each page, before its TOAST table has begun
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE wide (v int, pad char(800), note text) WITH (fillfactor = 10);
INSERT INTO wide SELECT 0, 'x' FROM generate_series(1, 400);
SQL
	append_to_file($node->basedir . '/wide.sql', "UPDATE wide SET v = v + 1;\n");
	$load = $start_load->('wide');
	# the snapshot of a call that waits would keep all versions of the rows, and the table would grow
	my $wide = $node->safe_psql('postgres', 'SELECT max(job) FROM move_table('
		. "'wide', 'regress_fast', wait => false, settings => '{\"max_lock_time\": \"1ms\"}')");
	wait_for_job_end($node, $wide);
	$end_load->($load);
	$out = $node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $wide AND name = 'wide'");
	set_tests($node);
	like($out, qr/^failed\|55000\|copying table "wide" cannot keep up with the changes to it/, 'keeping up: and that of a table')
		or diag $err;
	$node->safe_psql('postgres', 'DROP TABLE wide');

	# in the rounds it keeps up; but each time before the lock is asked for, 300 blocks
	# change, which take 30 ms
	my $sum = $node->safe_psql('postgres', 'SELECT sum(v) FROM busy');
	$load = $start_load->('busy');
	poll_until($node, "SELECT sum(v) > $sum FROM busy", 't', 'the writers');
	my $lock_time = sub {
		my ($to, $ms, @more) = @_;
		set_tests($node, test_point => 'swap-ready:writes', test_mutation => join(',', 'slow-blocks:500', @more));
		return $node->psql('postgres',
			"SELECT status, sqlstate, detail FROM move_indexes('busy_k', '$to', method => 'copy', settings => "
				. "'{\"max_lock_time\": \"$ms\"}')");
	};
	($rc, $out, $err) = $lock_time->($to, '10ms', 'hopeless');
	like($out, joined(
		qr/^failed\|55000\|copying index "busy_k" cannot keep up with the changes to it: After \d+ blocks were copied, /,
		qr/\d{3,} have changed since\. Their copy under the lock would take about \d+ ms; /,
		qr/index_mover\.max_lock_time is 10 ms\.$/),
		'max_lock_time: 10 ms are too few, and the row says what to raise') or diag $err;
	($rc, $out, $err) = $lock_time->($to, '200ms');
	is($out, 'moved||', 'max_lock_time: with 200 ms it is moved') or diag $err;
	$end_load->($load);
	set_tests($node);
	unlike($output, qr/ERROR|FATAL/, 'keeping up: no client had an error');
	survived_ok($node, 'busy', 'keeping up', "SELECT status FROM move_indexes('busy_k', '" . elsewhere($node, 'busy_k')
		. "', method => 'copy')", max_keys => 100, count => $KIND);
}

# ---------------------------------------------------------------------------
# A rebuild names the index and the tablespace to core, and by then they are others
# ---------------------------------------------------------------------------
sub beside_rebuild
{
	my ($name, $point, $to, $do, $row, $undo) = @_;
	my $call = held_at($node, $point, "SELECT status, sqlstate, detail FROM move_indexes('mine.same_name', '$to', method => 'rebuild')");
	$node->safe_psql('postgres', $do);
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	like($out, $row, "$name: the row") or diag $err;
	$node->safe_psql('postgres', $undo) if $undo;
	wait_for_no_worker($node);
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	is($node->safe_psql('postgres',
		q(SELECT string_agg(c.oid::regclass || ' ' || indisvalid, ', ' ORDER BY c.oid::regclass::text) FROM pg_class c JOIN pg_index ON )
			. q(indexrelid = c.oid WHERE relname ~ '^same_name' AND reltablespace = 0)),
		'mine.same_name true, theirs.same_name true', "$name: both indexes are where they were");
	return;
}

$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA mine;
CREATE SCHEMA theirs;
CREATE TABLE mine.m (i int CONSTRAINT same_name PRIMARY KEY);
CREATE TABLE theirs.t (i int CONSTRAINT same_name PRIMARY KEY);
CREATE TABLESPACE regress_third LOCATION '';
SQL
beside_rebuild('the schema is renamed, and another gets its name', 'rebuild-named', 'regress_fast',
	'ALTER SCHEMA mine RENAME TO mine_no_more; ALTER SCHEMA theirs RENAME TO mine',
	qr/^failed\|55000\|index "same_name" was replaced by another one/m,
	'ALTER SCHEMA mine RENAME TO theirs; ALTER SCHEMA mine_no_more RENAME TO mine');
beside_rebuild('the target is renamed, and another gets its name', 'rebuild-named', 'regress_fast',
	'ALTER TABLESPACE regress_fast RENAME TO regress_other; ALTER TABLESPACE regress_third RENAME TO regress_fast',
	qr/^failed\|55000\|tablespace with OID \d+ was renamed/m,
	'ALTER TABLESPACE regress_fast RENAME TO regress_third; ALTER TABLESPACE regress_other RENAME TO regress_fast');
beside_rebuild('the target of a rebuild is dropped', 'rebuild-begins', 'regress_third',
	'DROP TABLESPACE regress_third', qr/^failed\|42704\|tablespace with OID \d+ does not exist/m);
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('mine.m', 'regress_fast', method => 'rebuild')"),
	'moved', 'the next rebuild works');

# ---------------------------------------------------------------------------
# Another command moves all that a job is to move
# ---------------------------------------------------------------------------
my $other = IndexMover::Session->new($node);
$other->run('BEGIN; ALTER INDEX mine.same_name SET TABLESPACE regress_slow');
my $late = start_call($node, 'late', "SELECT status, detail FROM move_indexes('mine.m', 'regress_slow', method => 'copy')");
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase ~ 'waiting'", '1', 'the move waits');
$other->run('COMMIT');
$other->end;
my (undef, $skipped, $notices) = finish_call($late);
is($skipped, qq(skipped|Already in tablespace "regress_slow".\n), 'it is where it was to go');
like($notices, qr/NOTICE:  00000: job \d+: everything was skipped$/m, 'and so says the last line');

$node->stop;
done_testing();
