# What becomes of a move whose role is dropped, loses its rights, or could not log
# in any more, and of one in a database that takes no more connections: each in
# mid-copy and in mid-rebuild.  Rights are looked at again when the move has to take its
# locks again; one that has them goes on with the rights that it had when it took them.
#
# Fault (locks): the role is dropped, loses its rights (also `MAINTAIN`), cannot log in, has
#   expired, has no connection left; the database takes no connections (also 053, sql/privileges)
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

my $node = new_node('roles');
my %point = (copy => 'copy-half', rebuild => 'rebuild-entry-committed');
my $has_maintain = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO PUBLIC');
setup_database($node, 'template1');
$node->safe_psql('postgres', 'CREATE DATABASE closing');
$node->safe_psql('closing', 'GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO PUBLIC');

# Roles and a table again.  boss and helper own nothing, so that they can be dropped
# at any time; boss may move the index as superuser, helper as member of its owner.
sub new_roles
{
	my ($db) = @_;
	foreach my $each ('postgres', 'closing')
	{
		$node->safe_psql($each, 'SET client_min_messages = warning; DROP TABLE IF EXISTS r');
		$node->safe_psql($each, "DROP OWNED BY $_")
		  foreach split /\n/, $node->safe_psql($each, "SELECT rolname FROM pg_roles WHERE rolname IN ('mover', 'heir', 'boss', 'helper')");
	}
	$node->safe_psql($db, <<'SQL');
SET client_min_messages = warning;
DROP ROLE IF EXISTS mover, heir, boss, helper;
CREATE ROLE mover LOGIN;
CREATE ROLE heir;
CREATE ROLE boss LOGIN SUPERUSER;
CREATE ROLE helper LOGIN IN ROLE mover;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover;
GRANT CREATE ON SCHEMA public TO mover;
SET ROLE mover;
CREATE TABLE r (i int, s text);
INSERT INTO r SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
CREATE INDEX r_s ON r (s) TABLESPACE regress_slow;
RESET ROLE;
SQL
	return;
}

my $moved = qr/^moved\|$/;
my $may_not = qr/^(?:skipped|failed)\|42501$/;
my $gone = qr/^skipped\|42704$/;
my $gave_way = qr/^failed\|55006$/;

# Who calls; what is done meanwhile, by a superuser; what becomes of a copy, and of
# a rebuild.
my @cases = (
	[ boss => 'DROP ROLE boss', $moved, $moved ],
	[ helper => 'DROP ROLE helper', $moved, $moved ],
	[ mover => 'REASSIGN OWNED BY mover TO heir; DROP OWNED BY mover; DROP ROLE helper, mover', $may_not, $gave_way ],
	[ mover => 'DROP OWNED BY mover', $gone, $gave_way, gone => 1 ],
	[ helper => 'REVOKE mover FROM helper', $moved, $moved ],
	[ mover => 'REVOKE CREATE ON TABLESPACE regress_fast FROM mover', $moved, $moved ],
	[ mover => 'REVOKE USAGE ON SCHEMA public FROM mover, PUBLIC', $moved, $moved, undo => 'GRANT USAGE ON SCHEMA public TO PUBLIC' ],
	[ mover => "ALTER ROLE mover NOLOGIN VALID UNTIL '2000-01-01' CONNECTION LIMIT 0", $moved, $moved ],
	[ boss => 'ALTER ROLE boss NOSUPERUSER', $moved, $moved ],
	[ boss => 'ALTER DATABASE closing ALLOW_CONNECTIONS false', $moved, $moved, db => 'closing',
		undo => 'ALTER DATABASE closing ALLOW_CONNECTIONS true' ],
	[ boss => 'ALTER DATABASE closing CONNECTION LIMIT 0', $moved, $moved, db => 'closing',
		undo => 'ALTER DATABASE closing CONNECTION LIMIT -1' ],
);
push @cases,
  [ heir => 'REVOKE MAINTAIN ON r FROM heir', $moved, $moved,
  	before => 'GRANT MAINTAIN ON r TO heir; GRANT CREATE ON TABLESPACE regress_fast TO heir' ],
  [ heir => 'REVOKE pg_maintain FROM heir', $moved, $moved,
  	before => 'GRANT pg_maintain TO heir; GRANT CREATE ON TABLESPACE regress_fast TO heir' ]
  if $has_maintain;

sub one_case
{
	my ($method, $who, $do, $row, %options) = @_;
	my $name = "$do in mid-$method of $who";
	my $db = $options{db} || 'postgres';
	new_roles($db);
	$node->safe_psql($db, $options{before}) if $options{before};
	$node->safe_psql($db, "SELECT oracle.remember_metadata('r')");
	my $holder = IndexMover::Session->new($node, dbname => $db);
	$holder->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $node->safe_psql($db,
		"SET ROLE $who; SELECT job FROM move_indexes('r_s', 'regress_fast', method => '$method', wait => false)");
	$node->wait_for_log(qr/test point "$point{$method}": waiting/, $log);

	my $session = IndexMover::Session->new($node);
	my $waits = 0;
	foreach my $command (split /; /, $do)
	{
		$session->send($command);
		my $look = 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid;
		my $start = time;
		until ($waits || $session->has_answered)
		{
			die "$name: $command neither waits nor ends" if time - $start > $IndexMover::Test::TIMEOUT;
			# what wants the table for itself has to wait for the move to go on
			next if $holder->run($look) ne 't';
			$waits = 1;
			$holder->end;
		}
		$session->answer;
		unlike($session->errors, qr/ERROR|FATAL/, "$name: $command");
	}
	$holder->end unless $waits;
	# not by a session in that database, which may take none
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'", '0', "$name: the end");
	$node->safe_psql('postgres', $options{undo}) if $options{undo};
	my $out = $node->safe_psql($db, "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job");
	note "$name: $out";
	like($out =~ s/^([^|]*\|[^|]*)\|.*$/$1/sr, $row, "$name: the row") or diag $out;
	$session->end;
	leftovers_ok($node, $name, within => 5, dbname => $db);
	files_ok($node, $name, dbname => $db);
	unless ($options{gone})
	{
		metadata_ok($node, 'r', $name, dbname => $db) unless $do =~ /REASSIGN/;
		verdict_ok($node, 'r', $name, dbname => $db, max_keys => 50);
		my $to = elsewhere($node, 'r_s', dbname => $db);
		is($node->safe_psql($db, "SELECT status FROM move_indexes('r_s', '$to', method => '$method')"), 'moved',
			"$name: the next call moves");
	}
	count_fault("changes of roles in mid-$method");
	return;
}

set_test_point($node, join ',', map { "$_:wait" } values %point);
foreach my $case (@cases)
{
	my ($who, $do, $copy, $rebuild, %options) = @$case;
	one_case('copy', $who, $do, $copy, %options);
	one_case('rebuild', $who, $do, $rebuild, %options);
}

$node->stop;
done_testing();
