# A copy from slow storage takes no more than its share of it: it rests as long as it
# reads, the workers of a job together, and says so; with pacing off it does not.  (What clients feel of it: bench/hdd.)
#
# Fault (storage): slow storage, shared with clients
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant { MS => 100, ALWAYS => 1_000_000_000 };

my $library = preload_library('io_faults');
my $node = do
{
	local $ENV{LD_PRELOAD} = $library;
	new_node('slow', verify => 0, conf => "checkpoint_timeout = 1h\nmax_wal_size = 1GB\nshared_buffers = 2MB");
};
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE a (i int, s text);
INSERT INTO a SELECT g, md5(g::text) FROM generate_series(1, 22000) g;
CREATE SCHEMA two;
CREATE TABLE two.c AS TABLE a;
CREATE TABLE two.d AS TABLE a;
CREATE INDEX a_s ON a (s) WITH (fillfactor = 10) TABLESPACE regress_slow;
CREATE INDEX c_s ON two.c (s) WITH (fillfactor = 10) TABLESPACE regress_slow;
CREATE INDEX d_s ON two.d (s) WITH (fillfactor = 10) TABLESPACE regress_slow;
VACUUM ANALYZE a;
SELECT oracle.remember_keys('a'), oracle.remember_metadata('a');
SQL
my ($mb) = $node->safe_psql('postgres', "SELECT round(pg_relation_size('a_s') / 1048576.0, 1)");
cmp_ok($mb, '>', 9, "the index is large enough ($mb MB)");
my $slow = 'pg_tblspc/' . $node->safe_psql('postgres', "SELECT oid FROM pg_tablespace WHERE spcname = 'regress_slow'") . '/';
# a megabyte is read at once, so at least this long, in seconds
my $reading = int($mb) * MS / 1000;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What the last job took, and how much of it were rests and waits, in seconds
sub last_job
{
	return split /\|/,
	  sql("SELECT string_agg(DISTINCT status, ','), extract(epoch FROM max(finished_at) - min(started_at)), sum(idle) / 1000.0 FROM "
	  	. "index_mover.move_log WHERE job = (SELECT max(job) FROM index_mover.move_log)");
}

sub back { sql("SELECT count(*) FROM move_schema_indexes('$_[0]', 'regress_slow', 'copy', settings => '{\"pacing\": \"off\"}')"); return; }

# ---- what it reads from a cache or from fast storage is not rested for ---------------
is(sql("SELECT status FROM move_indexes('a_s', 'regress_fast', 'copy')"), 'moved', 'fast: moved');
my ($status, $took, $idle) = last_job();
cmp_ok($idle, '<', $reading / 2, 'fast: hardly a rest') or diag "$took s";
back('public');

# ---- slow -------------------------------------------------------------------------
break_calls('slow', MS, 1, ALWAYS, $slow);
my $job = begin_job($node, 'a_s', 'regress_fast');
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'slow storage', 'progress to say why it rests');
wait_for_job_end($node, $job);
($status, $took, $idle) = last_job();
is($status, 'moved', 'slow: moved');
cmp_ok($idle, '>', 0.8 * $reading, 'slow: it has rested as long as it read');
cmp_ok($took, '>', 1.8 * $reading, 'slow: and so took twice as long');
back('public');

foreach my $off ([ pacing => 'off' ], [ max_read_share => 1 ])
{
	my ($name, $value) = @$off;
	wait_for_job_end($node, begin_job($node, 'a_s', 'regress_fast', $name => $value));
	($status, $took, $idle) = last_job();
	is($status, 'moved', "$name = $value: moved");
	cmp_ok($took, '>', $reading, "$name = $value: it was slow");
	cmp_ok($idle, '<', 0.5 * $reading, "$name = $value: hardly a rest");
	back('public');
}

# two workers share what one may take
sql("SELECT count(*) FROM move_schema_indexes('two', 'regress_fast', 'copy', settings => '{\"max_workers\": 2}')");
($status, $took, $idle) = last_job();
is($status, 'moved', 'two workers: moved');
cmp_ok($took, '>', 0.9 * 2 * 2 * $reading, 'two workers: together they took no more than half of the storage');

# a rest is no longer than it must
$job = begin_job($node, 'a_s', 'regress_fast', max_read_share => 0.01);
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'slow storage', 'a long rest');
sql("SELECT cancel_move($job)");
wait_for_job_end($node, $job);
is((last_job())[0], 'canceled', 'a rest is canceled');
$job = begin_job($node, 'a_s', 'regress_fast', max_read_share => 0.01);
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'slow storage', 'a long rest');
sql("SELECT alter_move($job, 'max_read_share', '1')");
wait_for_job_end($node, $job);
($status, $took, $idle) = last_job();
is($status, 'moved', 'alter_move ends a rest');
cmp_ok($took, '<', 50 * $reading, 'and all that would have followed');
mend_calls();
all_right($node, 'a', 'at the end');

done_testing();
