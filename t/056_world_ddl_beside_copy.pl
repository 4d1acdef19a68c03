# What others define while a copy is on its way, besides the table itself: the
# tablespaces, the database, triggers, rules and event triggers, roles; a copy that
# can't keep up with those who write; and what a rebuild does that finds something
# else under the names it gives to core.
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

needs_test_points();

my $node = new_node('beside');
$node->safe_psql('postgres', <<SQL);
CREATE ROLE mover LOGIN;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover;
GRANT CREATE ON SCHEMA public TO mover;
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, jsonb) TO mover;
SET ROLE mover;
CREATE TABLE d (i int, s text);
INSERT INTO d SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX d_s ON d (s) TABLESPACE regress_slow;
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
	survived_ok($node, 'd', $name, "SELECT status FROM move_indexes('d_s', '" . elsewhere($node, 'd_s') . "', method => 'copy')", max_keys => 100, count => $KIND);
	return;
}

beside('the target is renamed', 'copy-half', 'ALTER TABLESPACE %target% RENAME TO regress_other', qr/^moved\|$/,
	undo => 'ALTER TABLESPACE regress_other RENAME TO %target%');
beside('the target gets another owner', 'copy-half', 'ALTER TABLESPACE %target% OWNER TO mover', qr/^moved\|$/,
	undo => 'ALTER TABLESPACE %target% OWNER TO postgres; GRANT CREATE ON TABLESPACE %target% TO mover');
beside('the right on the target is revoked', 'copy-half', 'REVOKE CREATE ON TABLESPACE %target% FROM mover', qr/^(failed\|42501|moved\|)$/,
	user => 'mover', undo => 'GRANT CREATE ON TABLESPACE %target% TO mover');
beside('the target is dropped', 'copy-half', 'DROP TABLESPACE %target%', qr/^moved\|$/, errors => qr/55000/);
beside('triggers and rules on the table', 'copy-half', <<'SQL', qr/^moved\|$/, waits => 1, undo => 'DROP TRIGGER d_t ON d; DROP RULE d_r ON d; DROP FUNCTION d_t()');
CREATE FUNCTION d_t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
CREATE TRIGGER d_t BEFORE UPDATE ON d FOR EACH ROW EXECUTE FUNCTION d_t();
CREATE RULE d_r AS ON DELETE TO d DO INSTEAD NOTHING;
SQL
beside('an event trigger that refuses everything', 'copy-half', <<'SQL', qr/^moved\|$/, undo => 'DROP EVENT TRIGGER d_e; DROP FUNCTION d_e()');
CREATE FUNCTION d_e() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
CREATE EVENT TRIGGER d_e ON ddl_command_start WHEN TAG IN ('ALTER INDEX', 'CREATE INDEX', 'ALTER TABLE') EXECUTE FUNCTION d_e();
SQL
# others may use the database, so it can't be a template, or go elsewhere
beside('the database as a template', 'copy-half', 'CREATE DATABASE copied TEMPLATE postgres', qr/^moved\|$/, errors => qr/55006/);
beside('the database is moved', 'copy-half', 'ALTER DATABASE postgres SET TABLESPACE regress_fast', qr/^moved\|$/, errors => qr/55006|0A000/);

# Other databases come and go: each backend has to close its files for that, and who
# drops one waits for all of them.  The copy's own loop does so: it runs, though slowly.
{
	my $name = 'other databases come and go';
	my $copying = "SELECT count(*) FROM index_mover_progress WHERE method = 'copy' AND phase IN ('copying blocks', 'throttled')";
	my $call = start_call($node, 'slow', "SELECT status, sqlstate FROM move_indexes('d_s', '" . elsewhere($node, 'd_s') . "', method => 'copy', settings => '{\"max_rate\": \"8kB\"}')");
	wait_for_phase($node, 'throttled');
	my ($rc, $out, $err) = $node->psql('postgres', 'CREATE DATABASE other; DROP DATABASE other');
	is($rc, 0, "$name: is done") or diag $err;
	is($node->safe_psql('postgres', $copying), '1', "$name: the copy goes on meanwhile");
	$node->safe_psql('postgres', "SELECT alter_move(job, 'max_rate', '0') FROM index_mover_progress");
	($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: the row") or diag $err;
	survived_ok($node, 'd', $name, "SELECT status FROM move_indexes('d_s', '" . elsewhere($node, 'd_s') . "', method => 'copy')", max_keys => 100, count => $KIND);
}

# ---- a copy that can't keep up -------------------------------------------------------
# Each transaction writes to every leaf of the index, and each round of the copy
# waits for some of them: what is left does not get less.  (How much is too much
# is 64 MB; here it is anything.)
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE busy (k int, v int) WITH (fillfactor = 50);
INSERT INTO busy SELECT g, 0 FROM generate_series(1, 20000) g;
CREATE INDEX busy_k ON busy (k) WITH (fillfactor = 10) TABLESPACE regress_slow;
CREATE INDEX busy_v ON busy (v);
SELECT oracle.remember_keys('busy'), oracle.remember_metadata('busy');
SQL
	cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('busy_k') / current_setting('block_size')::int"), '>', 300, 'keeping up: enough blocks');
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
	my $load = $start_load->('busy');

	# a burst of writes is waited out: many rounds in vain, then others write
	set_tests($node, test_point => 'copy-end:writes,copy-round:writes', test_mutation => 'busy');
	my $call = start_call($node, 'mover', "SELECT status, sqlstate FROM move_indexes('busy_k', 'regress_fast', method => 'copy')");
	wait_for_phase($node, 'copying changed blocks');
	my $written = $node->safe_psql('postgres', 'SELECT sum(v) FROM busy');
	# each transaction changes 1,000 rows, each round waits for 25 transactions
	poll_until($node, "SELECT sum(v) > $written + 300 * 1000 FROM busy", 't', 'many rounds');
	my $calm = $start_load->('calm');
	$end_load->($load);
	my ($rc, $out, $err) = finish_call($call);
	$end_load->($calm);
	is($out, "moved|\n", 'keeping up: a burst of writes is waited out') or diag $err;
	cmp_ok($node->safe_psql('postgres', 'SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1'), '>', 6 * 300, 'keeping up: after many rounds');

	$load = $start_load->('busy');
	set_tests($node, test_point => 'copy-end:writes,copy-round:writes', test_mutation => 'hopeless');
	($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate, detail FROM move_indexes('busy_k', 'regress_slow', method => 'copy')");
	$end_load->($load);
	set_tests($node);
	like($out, qr/^failed\|55000\|copying index "busy_k" cannot keep up with the changes to it/, 'keeping up: the copy gives up') or diag $err;
	unlike($output, qr/ERROR|FATAL/, 'keeping up: no client had an error');
	survived_ok($node, 'busy', 'keeping up', "SELECT status FROM move_indexes('busy_k', 'regress_slow', method => 'copy')", max_keys => 100, count => $KIND);
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
	is($node->safe_psql('postgres', q(SELECT string_agg(c.oid::regclass || ' ' || indisvalid, ', ' ORDER BY c.oid::regclass::text) FROM pg_class c JOIN pg_index ON indexrelid = c.oid WHERE relname ~ '^same_name' AND reltablespace = 0)),
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

$node->stop;
done_testing();
