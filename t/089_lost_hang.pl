# A device that hangs: whoever looks at it waits until it answers.  That is a worker of its own,
# while policies are carried out, queries and moves elsewhere go on, and a server that ends
# takes it along.
#
# Fault (storage): the device of a tablespace does not answer, as a network's file system does
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Test;
use IndexMover::Wait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

needs_test_points();

my $dir = PostgreSQL::Test::Utils::tempdir();
make_path("$dir/$_") foreach qw(fast other third);
my $node = new_node('hang', conf => <<CONF);
shared_preload_libraries = 'index_mover'
index_mover.scheduler_databases = 'postgres'
checkpoint_timeout = 1h
max_worker_processes = 12
CONF
sub value { return $node->safe_psql('postgres', $_[0]); }

# The workers that look at devices; pg_stat_activity does not have them.
sub watches
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	return map { /^\s*(\d+)\s+$postmaster\s.*index_mover device watch/ ? $1 : () } `ps -eo pid,ppid,args`;
}
sub hang { append_to_file("$dir/$_[0]/hang", ''); return; }
sub answer { unlink "$dir/$_[0]/hang" or die $!; return; }
sub wait_until
{
	my ($what, $is_so) = @_;
	for (my $left = 60; $left > 0; $left -= 0.05)
	{
		return ok(1, $what) if $is_so->();
		usleep(50_000);
	}
	return ok(0, $what);
}
sub marked { my ($name) = @_; return wait_until("$name is marked", sub { glob("$dir/$name/index_mover.*") }); }
sub known
{
	my ($oid) = @_;
	return slurp_file($node->data_dir . '/index_mover.evidence') =~ /^tablespace $oid /m;
}
# a policy that is due moves what is in its way
sub policy_ok
{
	my ($name) = @_;
	value('ALTER TABLE events_1 SET TABLESPACE pg_default; SELECT pg_reload_conf()');
	ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace
		WHERE c.relname = 'events_1' AND t.spcname = 'other'"), $name);
	wait_for_no_worker($node);
	return;
}

value("CREATE TABLESPACE $_ LOCATION '$dir/$_'") foreach qw(fast other);
marked($_) foreach qw(fast other);
my $fast = value("SELECT oid FROM pg_tablespace WHERE spcname = 'fast'");
value($_) foreach 'CREATE TABLE t (id int)', 'INSERT INTO t SELECT generate_series(1, 5000)',
	'CREATE DATABASE dropped', 'CREATE DATABASE dropped_too',
	'CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast', 'CREATE TABLE u (id int)', 'CREATE INDEX u_id ON u (id)',
	'CREATE TABLE events (d date) PARTITION BY RANGE (d)',
	"CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')",
	"INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, every)
		VALUES ('old', 'events', 'other', '1 year', '0', '1 s')";
policy_ok('a policy is carried out');
wait_until('no look is under way', sub { !watches() });

# ---- while the server runs ---------------------------------------------------------------------
my $from = -s $node->logfile;
hang('fast');
# each new tablespace has all devices looked at
value("CREATE TABLESPACE third LOCATION '$dir/third'");
$node->wait_for_log(qr/tablespace $fast hangs/, $from);
is(scalar(watches()), 1, 'a worker looks, and waits');
policy_ok('a policy is carried out meanwhile');
is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7'), 1, 'queries go on');
is(value("SELECT string_agg(status, ' ') FROM move_indexes('u', 'other')"), 'moved', 'so do moves between other devices');
my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = '300ms'; SELECT kind FROM index_mover_check()");
like($err, qr/statement timeout/, 'who looks at the device waits, and can be canceled') if $rc != 0;
is(scalar(watches()), 1, 'still one worker');
# all processes with a part in it have to agree
is($node->psql('postgres', "SET statement_timeout = '60s'; DROP DATABASE dropped"), 0, 'a database can be dropped');
my $launcher = value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover launcher'");
answer('fast');
wait_until('it ends when the device answers', sub { !watches() });
marked('third');
is(value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover launcher'"), $launcher, 'the launcher is the same');

# ---- while files are lost ----------------------------------------------------------------------
value('CHECKPOINT');
value('INSERT INTO t VALUES (6000)');
$node->stop('immediate');
rmtree("$dir/fast");
make_path("$dir/fast");
hang('fast');
$from = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/tablespace $fast hangs/, $from);
policy_ok('lost: a policy is carried out');
is($node->psql('postgres', "SET statement_timeout = '60s'; DROP DATABASE dropped_too"), 0, 'lost: a database can be dropped');
# whoever plans waits for no look that takes longer than a second
usleep(1_100_000);
($rc, $out, $err) = $node->psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 6000', timeout => 60);
is($out, 1, 'lost: a query has the right answer, and does not wait');
is(scalar(watches()), 1, 'lost: one worker looks');
answer('fast');
wait_until('lost: it ends when the device answers', sub { !watches() });
isnt($node->psql('postgres', 'INSERT INTO t VALUES (6000)'), 0, 'lost: no duplicate');
# of a slow device, too: sessions that connect share their looks
value("ALTER SYSTEM SET index_mover.test_mutation = 'look-ms:300'");
value('SELECT pg_reload_conf()');
$node->poll_query_until('postgres', "SELECT current_setting('index_mover.test_mutation') <> ''") or die;
$from = -s $node->logfile;
my $began = time;
value('SELECT 1') foreach 1 .. 20;
my $seconds = time - $began;
my $looks = () = slurp_file($node->logfile, $from) =~ /tablespace $fast is slow/g;
cmp_ok($looks, '<=', $seconds + 3, "lost: twenty logins in $seconds s look $looks times at a slow device");
value("ALTER SYSTEM RESET index_mover.test_mutation");
value('SELECT pg_reload_conf()');
$node->poll_query_until('postgres', "SELECT current_setting('index_mover.test_mutation') = ''") or die;
is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved', 'lost: healed');

# ---- the launcher ends ---------------------------------------------------------------------------
wait_until('no look is under way', sub { !watches() });
hang('fast');
$from = -s $node->logfile;
value('DROP TABLESPACE third');
$node->wait_for_log(qr/tablespace $fast hangs/, $from);
my ($watch) = watches();
value("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'index_mover launcher'");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'index_mover launcher'") or die;
$from = -s $node->logfile;
answer('fast');
wait_until('the launcher was terminated: its look ends, too', sub { !watches() });
like(slurp_file($node->logfile, $from), qr/\[$watch\].*terminating background worker/, 'before it has looked at all devices');

# ---- the server ends -----------------------------------------------------------------------------
$node->restart;
foreach my $end ('an immediate stop', 'a kill of the postmaster')
{
	wait_until('all is looked at', sub { -e $node->data_dir . '/pg_snapshots/index_mover.running' && !watches() });
	hang('fast');
	$from = -s $node->logfile;
	make_path("$dir/third");
	value("CREATE TABLESPACE third LOCATION '$dir/third'");
	$node->wait_for_log(qr/tablespace $fast hangs/, $from);
	($watch) = watches();
	if ($end =~ /stop/) { $node->stop('immediate') }
	else { $node->kill9 }
	wait_until("$end: the look ends, too", sub { !kill 0, $watch });
	answer('fast');
	wait_until("$end: started again", sub { $node->{_pid} = undef; return $node->start(fail_ok => 1); });
	value('DROP TABLESPACE third');
}
is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), 0, 'nothing is lost by all that');
done_testing();
