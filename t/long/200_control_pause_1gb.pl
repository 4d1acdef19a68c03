# The pause at full size: an index of 1 GB, paused in the middle for ten minutes
# of writes, while checkpoints recycle the WAL at max_wal_size = 64 MB.  Run by
# "scripts/test --long", for it takes a quarter of an hour and 4 GB;
# t/040_control_steer.pl has the same in small.
#
# INDEX_MOVER_LONG_SECONDS: how long to write (600).
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{INDEX_MOVER_LONG_SECONDS} || 600;
my $rate = 300;		# transactions a second
my $rows = 1_900_000;

my $node = new_node('pause_1gb', conf => <<CONF);
max_wal_size = 64MB
min_wal_size = 32MB
shared_buffers = 128MB
log_checkpoints = on
autovacuum = off
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(<<SQL);
SET maintenance_work_mem = '256MB';
CREATE TABLE big (i int PRIMARY KEY, s text, n int) WITH (fillfactor = 80);
INSERT INTO big SELECT g, md5(g::text), 0 FROM generate_series(1, $rows) g;
CREATE INDEX big_s ON big (s) WITH (fillfactor = 10) TABLESPACE regress_slow;
VACUUM ANALYZE big;
SQL
my $size = sql("SELECT pg_relation_size('big_s')");
cmp_ok($size, '>=', 1024 * 1024 * 1024, "the index has 1 GB ($size bytes)");

# What a process has for itself alone, in kB: its shared buffers are not that.
sub own_memory
{
	my ($pid) = @_;
	open(my $fh, '<', "/proc/$pid/status") or return 0;
	my ($kb) = join('', <$fh>) =~ /^RssAnon:\s+(\d+) kB/m;
	return $kb || 0;
}

# Updates of the indexed column, inserts, deletes; some of it in one place.
my $script = PostgreSQL::Test::Utils::tempdir() . '/writes.sql';
open(my $fh, '>', $script) or die $!;
print $fh <<SQL;
\\set a random(1, $rows)
\\set b random(1, $rows)
\\set c random($rows + 1, 2 * $rows)
UPDATE big SET s = md5(s || random()), n = n + 1 WHERE i = :a;
DELETE FROM big WHERE i = :b;
INSERT INTO big VALUES (:b, md5(random()::text), 1), (:c, md5(random()::text), 2) ON CONFLICT DO NOTHING;
SQL
close $fh;

# Write for so many seconds, in the background.
sub start_writing
{
	my ($for, $tps) = @_;
	my $writing = { out => '' };
	$writing->{run} = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '4', '-T', $for, '-R', $tps, '-f', $script, $node->connstr('postgres') ],
		'<', \'', '>&', \$writing->{out});
	return $writing;
}

sub finish_writing
{
	my ($writing, $name) = @_;
	my $ended = $writing->{run}->finish;
	my ($done) = $writing->{out} =~ /number of transactions actually processed: (\d+)/;
	ok($ended && $done, "$name: all clients wrote to the end") or diag $writing->{out};
	return $done;
}

sub progress
{
	return split /\|/, sql("SELECT throttled_by, blocks_done, blocks_total FROM index_mover_progress WHERE job = $_[0]");
}

# ---------------------------------------------------------------------------
# To the middle
# ---------------------------------------------------------------------------
my $job = sql(q{SELECT max(job) FROM move_indexes('big_s', 'regress_fast', method => 'copy', wait => false, settings => }
	. q{'{"max_rate": "40MB", "verify": "on"}')});
poll_until($node, "SELECT blocks_done >= blocks_total / 2 AND blocks_total > 0 FROM index_mover_progress WHERE job = $job", 't',
	'half of the copy');
sql("SELECT pause_move($job)");
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
my $pid = worker_pid($node);
my (undef, $done, $total) = progress($job);
note "paused at block $done of $total";
cmp_ok($done, '<', 0.7 * $total, 'paused in the middle');
my $memory = own_memory($pid);

# ---------------------------------------------------------------------------
# Ten minutes of writes
# ---------------------------------------------------------------------------
my $log = -s $node->logfile;
my $wal_start = sql('SELECT pg_current_wal_lsn()');
my $start = time;
my $writing = start_writing($seconds, $rate);
my ($most_memory, $most_wal, $looks, $bad, $vacuumed) = ($memory, 0, 0, '', 0);
while ($writing->{run}->pumpable && time - $start < $seconds + 120)
{
	$writing->{run}->pump_nb;
	my ($throttled_by, $now_done) = progress($job);
	my ($wal, $holds) = split /\|/, sql(<<SQL);
SELECT (SELECT sum(size) FROM pg_ls_waldir()),
       (SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL))
SQL
	my $here = own_memory($pid);
	$most_memory = $here if $here > $most_memory;
	$most_wal = $wal if $wal > $most_wal;
	$bad .= "throttled by $throttled_by, block $now_done\n" if $throttled_by ne 'pause_move()' || $now_done != $done;
	$bad .= "holds a snapshot or a transaction ID\n" if $holds;
	$looks++;
	if (!$vacuumed && time - $start > $seconds / 2)
	{
		my ($rc, $out, $err) = $node->psql('postgres', "SET lock_timeout = '10s'; VACUUM (VERBOSE) big");
		is($rc, 0, 'VACUUM passes the paused copy');
		my ($removed) = $err =~ /"postgres.public.big".*?tuples: (\d+) removed/s;
		cmp_ok($removed || 0, '>', 0, 'and removes dead rows');
		$vacuumed = 1;
	}
	usleep(2_000_000);
}
my $transactions = finish_writing($writing, 'during the pause');
my $wal_written = sql("SELECT pg_current_wal_lsn() - '$wal_start'");
my $checkpoints = () = PostgreSQL::Test::Utils::slurp_file($node->logfile, $log) =~ /checkpoint complete/g;
note sprintf('%d transactions in %.0f s, %.0f MB of WAL, %d checkpoints, pg_wal at most %.0f MB; memory of the worker %d kB, at most %d '
	. 'kB; %d looks',
	$transactions, time - $start, $wal_written / 1048576, $checkpoints, $most_wal / 1048576, $memory, $most_memory, $looks);
is($bad, '', 'all the time it was paused, and held back no session');
cmp_ok($wal_written, '>', 10 * 64 * 1024 * 1024, 'more than ten times max_wal_size was written');
cmp_ok($checkpoints, '>=', 10, 'checkpoints came again and again');
is(sql("SELECT count(*) FROM pg_ls_waldir() WHERE name = pg_walfile_name('$wal_start')"), '0', 'the WAL of the beginning is gone');
cmp_ok($most_wal, '<', $wal_written / 2, 'the pause kept no WAL');
# one bit for each of the 131,072 blocks, and what reading WAL needs
cmp_ok($most_memory - $memory, '<', 4096, 'the worker needed no more memory than before (less than 4 MB)');

# ---------------------------------------------------------------------------
# On to the end, while others write
# ---------------------------------------------------------------------------
$writing = start_writing(15, $rate);
$start = time;
sql("SELECT alter_move($job, 'max_rate', '0'), resume_move($job)");
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job", '0', 'the end of the job', timeout => 600);
note sprintf('resumed and moved in %.1f s', time - $start);
finish_writing($writing, 'after the pause');
is(sql("SELECT name || ' ' || status || coalesce(': ' || message, '') FROM index_mover_history WHERE job = $job AND status <> 'moved'"), '',
	'the index is moved');
note sql("SELECT 'copied ' || blocks_copied || ', again ' || blocks_recopied || ', lock ' || lock_time FROM index_mover_history WHERE "
	. "job = $job");
is(sql("SELECT spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE relname = 'big_s'"), 'regress_fast',
	'and where it should be');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/starting the copy of index .* again/, 'what was done was kept');
all_right($node, 'big', 'after ten minutes of pause', no_metadata => 1, max_keys => 500, within => 5);
# every row, both ways
is( sql(q{SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SELECT count(*), }
	. q{sum(hashtextextended(ctid::text, i)) FROM big WHERE s >= ''}),
	sql(q{SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SELECT count(*), }
		. q{sum(hashtextextended(ctid::text, i)) FROM big WHERE s >= ''}),
	'every row by the index and by a scan');

done_testing();
