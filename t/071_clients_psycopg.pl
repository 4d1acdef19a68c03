# psycopg2 and psycopg 3: a call, its notices, a cancel, autocommit and not.
# Skipped for a driver that is not installed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# (the system's Python: its packages are what is looked for)
my $python = '/usr/bin/python3';
my @drivers = grep { -x $python && system("$python -c 'import $_' 2>/dev/null") == 0 } 'psycopg2', 'psycopg';
plan skip_all => 'neither psycopg2 nor psycopg is installed for /usr/bin/python3' unless @drivers;

my $node = new_node('psycopg');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (v int);
INSERT INTO t SELECT generate_series(1, 100000);
CREATE INDEX t_v ON t (v) TABLESPACE regress_slow;
SQL

foreach my $driver (@drivers)
{
	my ($out, $err);
	IPC::Run::run([ $python, "$FindBin::RealBin/clients/psycopg_calls.py", $driver, $node->connstr('postgres') ],
		'>', \$out, '2>', \$err, IPC::Run::timeout(300));
	my %outcome = map { split /: /, $_, 2 } split /\n/, $out;
	is($outcome{'waiting'}, "[('t_v', 'moved')]", "$driver: a call that waits returns its rows") or diag($err);
	is($outcome{'notices'}, 'True', "$driver: with notices");
	is($outcome{'in a transaction'}, '25001', "$driver: without autocommit it is refused");
	is($outcome{'queued in a transaction'}, 'queued', "$driver: but not with wait => false");
	is($outcome{'waiting for the job'}, 'done', "$driver: CALL wait_for_move()");
	is($outcome{'then'}, "[('moved',)]", "$driver: the job has moved the index");
	is($outcome{'ALTER in a transaction'}, '25001', "$driver: ALTER ... SET TABLESPACE without autocommit cannot be online");
	is($outcome{'ALTER'} . $outcome{'ALTER back'}, 'donedone', "$driver: with autocommit it is");
	is($outcome{'canceled'}, '57014', "$driver: cancel() ends the call");
	is($outcome{'after the cancel'}, "[('canceled',)]", "$driver: and the move");
	is(tablespace_of_index($node, 't'), 't_v: regress_slow', "$driver: the index is where it was");
	leftovers_ok($node, $driver, within => 5);
}

$node->stop;
done_testing();
