# JDBC: a call, its notices, a cancel, a prepared statement, autocommit and not.
# Skipped where there is no JDK or no driver.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $driver = $ENV{INDEX_MOVER_JDBC} || '/usr/share/java/postgresql.jar';
plan skip_all => "no JDBC driver at $driver" unless -f $driver;
plan skip_all => 'no JDK is installed' unless system('javac -version >/dev/null 2>&1') == 0;

my $node = new_node('jdbc', conf => "listen_addresses = '127.0.0.1'\n");
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (v int);
INSERT INTO t SELECT generate_series(1, 100000);
CREATE INDEX t_v ON t (v) TABLESPACE regress_slow;
SQL
my $user = $node->safe_psql('postgres', 'SELECT current_user');
my ($out, $err);
# not as an argument, which all users of the machine see
local $ENV{INDEX_MOVER_URL} = 'jdbc:postgresql://127.0.0.1:' . $node->port . "/postgres?user=$user&password=" . password_of($node, $user);
IPC::Run::run(
	[
		'java', '-cp', $driver, "$FindBin::RealBin/clients/JdbcCalls.java"
	],
	'>', \$out, '2>', \$err, IPC::Run::timeout(300));
my %outcome = map { split /: /, $_, 2 } split /\n/, $out;
is($outcome{'waiting'}, 'moved', 'a call that waits') or diag($err);
is($outcome{'notices'}, 'true', 'with notices');
is($outcome{'in a transaction'}, '25001', 'without autocommit it is refused');
is($outcome{'waiting for the job'}, 'done', 'CALL wait_for_move() of a job in a transaction');
is($outcome{'then'}, 'moved', 'the job has moved the index');
is($outcome{'canceled'}, '57014', 'cancel() ends a prepared call');
is($outcome{'after the cancel'}, 'canceled', 'and the move');
is(tablespace_of_index($node, 't'), 't_v: regress_slow', 'the index is where it was');
leftovers_ok($node, 'after the cancel', within => 5);

$node->stop;
done_testing();
