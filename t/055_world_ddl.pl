# DDL of every kind, in the middle of a copy and in the middle of a rebuild: the
# index is moved, or its row says why not, with the SQLSTATE that the docs name; the
# DDL comes through as soon as the move goes on, or at once where the move's locks
# are not in its way; and the catalogs say afterwards what they say where the same
# was done without a move.
#
# Each command is run twice, on tables of the same names: without a move, for the
# metadata to compare with, and beside one.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $node = new_node('every_kind', conf => "deadlock_timeout = 500ms\n");
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
		$node->safe_psql('postgres', "CALL wait_for_move($job)");
		$out = $node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job");
	}
	like($out =~ s/^([^|]*\|[^|]*)\|.*$/$1/sr, $row, "$name: the row") or diag "$out $err";
	unlike("$out $err", qr/XX000|cache lookup failed|could not open relation/, "$name: nothing that a user can't understand");
	$session->end;
	if ($index)
	{
		my $to = $node->safe_psql('postgres', "SELECT CASE t.spcname WHEN 'regress_fast' THEN 'regress_slow' ELSE 'regress_fast' END FROM pg_class c LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = '$index'::regclass");
		my $by = $node->safe_psql('postgres', "SELECT relpersistence FROM pg_class WHERE oid = '$index'::regclass") eq 'u' ? 'rebuild' : $method;
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

# where they stand still as long as somebody holds the lock
set_test_point($node, join ',', map { "$_:wait" } values %point);
foreach my $case (@ddl)
{
	my ($ddl, $waits, $copy, undef, %options) = @$case;
	one_case('copy', $ddl, $copy, $waits, %options) if $copy;
}
# a rebuild gives way to all of them alike
foreach my $case (picked { $_->[0] =~ /^(?:DROP|REINDEX|VACUUM|TRUNCATE|ALTER INDEX)/ } 'commands in mid-rebuild', @ddl)
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

$node->stop;
done_testing();
