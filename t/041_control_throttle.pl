# What holds a copy back: a rate, standbys and slots that are behind, a file
# system that fills up.  And whether progress tells the truth meanwhile.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# phases, times left and rates are those of a move as it is by default; with "verify"
# where it is said
my $node = new_node('throttle',
	verify => 0,
	streaming => 1,
	extra => ['--wal-segsize=1'],
	conf => <<CONF);
max_wal_size = 64MB
wal_keep_size = 0
checkpoint_timeout = 1h
wal_sender_timeout = 5min
CONF
# an index of about 50 MB without many rows, in full pages: empty space is not logged
$node->safe_psql('postgres', <<SQL);
CREATE TABLE th (i int, s text);
INSERT INTO th SELECT g, repeat(md5(g::text), 15) FROM generate_series(1, 90000) g;
CREATE INDEX th_s ON th (s) TABLESPACE regress_slow;
CREATE TABLE w (i int);
CREATE INDEX w_i ON w (i) TABLESPACE regress_slow;
VACUUM ANALYZE th;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $size = sql("SELECT pg_relation_size('th_s')");
my $page_size = block_size($node);
cmp_ok($size, '>', 45 * 1024 * 1024, "the index is large enough ($size bytes)");

sub status { return sql("SELECT status || coalesce(' ' || sqlstate, '') FROM index_mover_history WHERE job = $_[0]"); }

# A look at a job's progress, in a session that stays: blocks done, seconds
# left, phase, lag, the moment by the server's clock; and why it rests.
my $looker = IndexMover::Session->new($node);

sub look
{
	my ($job) = @_;
	return split /\|/,
	  $looker->run("SELECT blocks_done, coalesce(extract(epoch FROM eta), -1), phase, coalesce(wal_lag_bytes, -1), extract(epoch FROM "
	  	. "clock_timestamp()), coalesce(throttled_by, '-') FROM index_mover_progress WHERE job = $job");
}

# ---------------------------------------------------------------------------
# The rate, and the time left
# ---------------------------------------------------------------------------
# A rate or an estimate that is wrong is wrong each time; a pause of the machine
# at the wrong moment is not.
sub measure_rate
{
	my ($job) = @_;
	my ($first_done, $first_at, $last_done, $last_at, @etas);
	my $quarter = $size / $page_size / 4;
	while (1)
	{
		my ($done, $eta, $phase, $lag, $at) = look($job);
		last if !defined $at && status($job) !~ /^(queued|running)?$/;
		usleep(10_000), next if !defined $at;
		usleep(10_000), next if !$done;
		# count from one step to another, not from anywhere between
		if (!defined $last_done || $done != $last_done)
		{
			($first_done, $first_at) = ($done, $at) if defined $last_done && !defined $first_at;
			($last_done, $last_at) = ($done, $at) if !defined $first_at || $at - $first_at < 10.5;
			push @etas, [ $at, $eta, $done ] if $done >= $quarter && $phase ne 'removing old file' && $eta > 1;
		}
		usleep(10_000);
	}
	my $seconds = $last_at - $first_at;
	my $rate = ($last_done - $first_done) * $page_size / $seconds;
	note sprintf('%.2f MB/s over %.2f s', $rate / 1024 / 1024, $seconds);
	my $end = sql("SELECT extract(epoch FROM finished_at) FROM index_mover_history WHERE job = $job");
	my ($worst, @bad) = (0);
	foreach my $eta (@etas)
	{
		my $left = $end - $eta->[0];
		my $error = abs($eta->[1] / $left - 1);
		next if $left < 3;
		$worst = $error if $error > $worst;
		push @bad, sprintf('%.2f s said, %.2f s true at block %d', $eta->[1], $left, $eta->[2]) if $error > 0.2;
	}
	note sprintf('eta from the first quarter on: at worst %.0f %% wrong', $worst * 100);
	return ($seconds, abs($rate / (4 * 1024 * 1024) - 1), scalar(@etas), join('; ', @bad));
}

my ($job, $seconds, $rate_error, $etas, $bad_etas);
foreach my $try (1 .. 5)
{
	sql("SELECT undo_move($job)") if $job;
	$job = begin_job($node, 'th_s', 'regress_fast', max_rate => '4MB');
	($seconds, $rate_error, $etas, $bad_etas) = measure_rate($job);
	last if $seconds > 9.5 && $rate_error < 0.05 && $etas > 10 && $bad_etas eq '';
}
cmp_ok($seconds, '>', 9.5, 'measured over about ten seconds');
cmp_ok($rate_error, '<', 0.05, 'max_rate holds within 5 %');
is(status($job), 'moved', 'the throttled move ends as moved');
cmp_ok($etas, '>', 10, 'eta was shown');
is($bad_etas, '', 'from the first quarter on eta is within 20 %');

# The time left counts what comes after the copying, too: verifying (both files
# are read), loading what was cached, removing the old file.  The truth is when
# the worker has done with it all.
sub measure_all
{
	my ($job) = @_;
	my (@etas, $gone_at, %seen, @bad);
	while (1)
	{
		my ($done, $eta, $phase, $lag, $at) = look($job);
		last if !defined $at && status($job) !~ /^(queued|running)?$/;
		usleep(10_000), next if !defined $at;
		$gone_at = $at;
		$seen{$phase} = 1;
		push @etas, [ $at, $eta, $done, $phase ]
		  if $eta >= 0 && ($done >= $size / $page_size / 4 || $phase eq 'verifying');
		usleep(20_000);
	}
	foreach my $eta (@etas)
	{
		my $left = $gone_at - $eta->[0];
		push @bad, sprintf('%s: %.2f s said, %.2f s true at block %d', $eta->[3], $eta->[1], $left, $eta->[2])
		  if $left >= 3 && abs($eta->[1] / $left - 1) > 0.2;
	}
	note sprintf('phases: %s; %d looks, %d bad', join(', ', sort keys %seen), scalar @etas, scalar @bad);
	return ($seen{verifying} || 0, scalar(@etas), join('; ', @bad));
}

if (faults('the time left with what comes after the copying'))
{
	my $verifying;
	my $log_before = -s $node->logfile;
	my $log_jobs = 0;
	foreach my $try (1 .. 5)
	{
		sql("SELECT count(*) FROM undo_move($job)");
		# something to load again
		sql("SELECT count(*) FROM (SELECT s FROM th ORDER BY s LIMIT 20000) q");
		$job = begin_job($node, 'th_s', 'regress_fast', max_rate => '6MB', verify => 'on');
		($verifying, $etas, $bad_etas) = measure_all($job);
		$log_jobs += 2;
		last if $verifying && $etas > 10 && $bad_etas eq '';
	}
	my @lines = grep { !/ LOCATION: | checkpoint|max_wal_size/ } split /\n/,
		substr(PostgreSQL::Test::Utils::slurp_file($node->logfile), $log_before);
	my $moved_line = joined(
		qr/LOG: .*job \d+ \(postgres, by \w+\): moved index "public\.th_s" \(\d+ MB\) from tablespace "regress_\w+" to /,
		qr/"regress_\w+" by (?:copy in \d+\.\d\d s, lock \d+\.\d ms|rebuild in \d+\.\d\d s)$/);
	is(scalar(grep { /$moved_line/ } @lines), $log_jobs, 'the server log has one line for each index moved') or diag join "\n", @lines;
	is(join("\n", grep { !/LOG: .*job \d+ \(postgres/ } @lines), '', 'and none but those of the jobs');
	is(status($job), 'moved', 'moved, with verify');
	ok($verifying, 'it was seen verifying');
	cmp_ok($etas, '>', 10, 'eta was shown');
	is($bad_etas, '', 'with all that follows eta is within 20 %');
}

# The rate is the job's, however many of its workers are at it.
{
	my $rate = 4 * 1024 * 1024;
	sql(<<SQL);
CREATE SCHEMA two;
CREATE TABLE two.a AS SELECT * FROM th LIMIT 25000;
CREATE TABLE two.b AS TABLE two.a;
CREATE INDEX a_s ON two.a (s) TABLESPACE regress_slow;
CREATE INDEX b_s ON two.b (s) TABLESPACE regress_slow;
SQL
	my $both = sql("SELECT pg_relation_size('two.a_s') + pg_relation_size('two.b_s')");
	my $two = sql("SELECT max(job) FROM move_schema_indexes('two', 'regress_fast', method => 'copy', wait => false, settings => "
		. "'{\"max_rate\": \"4MB\", \"max_workers\": 2}')");
	wait_for_job_end($node, $two);
	is(sql("SELECT string_agg(status, ' ') FROM index_mover_history WHERE job = $two"), 'moved moved', 'two workers: moved');
	my ($took, $together) = split /\|/,
	  sql("SELECT extract(epoch FROM max(finished_at) - min(started_at)), extract(epoch FROM min(finished_at) - max(started_at)) FROM "
	  	. "index_mover_history WHERE job = $two");
	note sprintf('%.1f MB in %.2f s, of which %.2f s two at once', $both / 1024 / 1024, $took, $together);
	cmp_ok($together, '>', 0.5 * $took, 'two workers: both at once');
	cmp_ok($took, '>', 0.9 * $both / $rate, 'two workers: max_rate holds for both together');

	# and the one that waits for others leaves it to the one that copies: that rests
	# no longer than if it were alone
	sql('DROP INDEX two.a_s; CREATE INDEX a_i ON two.a (i) TABLESPACE regress_fast');
	my $reader = IndexMover::Session->new($node);
	$reader->run('BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SELECT count(*) FROM two.a WHERE i = 1');
	$two = sql("SELECT max(job) FROM move_schema_indexes('two', 'regress_slow', method => 'copy', wait => false, settings => "
		. "'{\"max_rate\": \"4MB\", \"max_workers\": 2}')");
	poll_until($node, "SELECT status FROM index_mover_history WHERE job = $two AND name = 'two.b_s'", 'moved', 'the one that copies');
	is(sql("SELECT phase FROM index_mover_progress WHERE name = 'two.a_i'"), 'waiting for lock to swap',
		'two workers: the other waits for a lock meanwhile');
	my ($rested, $size_of_b) = split /\|/,
		sql("SELECT idle / 1000.0, size_before FROM index_mover.move_log WHERE job = $two AND relation_name = 'b_s'");
	cmp_ok($rested, '>', 0.3 * $size_of_b / $rate, 'two workers: one has rested for max_rate');
	cmp_ok($rested, '<', 1.3 * $size_of_b / $rate, 'max_rate is for one worker alone while the other one rests');
	$reader->end;
	wait_for_job_end($node, $two);
	sql('DROP SCHEMA two CASCADE');
}

# what a waiting client hears
my ($rc, $out, $err) = $node->psql('postgres',
	"SELECT status FROM move_indexes('th_s', 'regress_slow', method => 'copy', settings => "
		. "'{\"max_rate\": \"25MB\", \"progress_interval\": 500}')");
is($out, 'moved', 'moved back');
like($err, qr/NOTICE:  index "th_s": copying blocks, \d+ %, \d+\.\d MB\/s, about \d+ s left(?:, throttled by max_rate)?$/m,
	'NOTICEs tell a waiting client');

# ---------------------------------------------------------------------------
# A standby that applies late
# ---------------------------------------------------------------------------
my $limit = 4 * 1024 * 1024;
$node->backup('backup');
sql("SELECT pg_create_physical_replication_slot('standby', true)");
my $standby = PostgreSQL::Test::Cluster->new('throttle_standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', <<CONF);
primary_slot_name = 'standby'
recovery_min_apply_delay = '1500ms'
wal_receiver_status_interval = 1
CONF
$standby->start;
$node->wait_for_catchup($standby, 'replay');

$job = begin_job($node, 'th_s', 'regress_fast', max_replica_lag => '4MB');
my ($most, $waited, $shown, $n) = (0, 0, 0, 0);
while (1)
{
	my ($done, $eta, $phase, $lag, $at, $throttled) = look($job);
	last if !defined $at && status($job) !~ /^(queued|running)?$/;
	usleep(10_000), next if !defined $at;
	# commits are what the standby delays
	sql('INSERT INTO w VALUES (1)') if $n++ % 10 == 0;
	my $behind = sql("SELECT pg_current_wal_flush_lsn() - min(replay_lsn) FROM pg_stat_replication");
	$most = $behind if $behind ne '' && $behind > $most;
	$waited++ if $throttled =~ /^standby "throttle_standby" is \d+ MB behind(?: in replay)?$/ && $phase =~ /^copying/;
	$shown = $lag if $lag > $shown;
	usleep(50_000);
}
is(status($job), 'moved', 'delayed standby: moved in the end');
cmp_ok($waited, '>', 0, 'it waited, and for which standby');
cmp_ok($most, '<', 1.6 * $limit, "the standby never got much further behind than allowed ($most bytes)");
cmp_ok($shown, '>', $limit / 2, 'and the lag was shown');

# ---------------------------------------------------------------------------
# One that disappears in mid-copy, and comes back
# ---------------------------------------------------------------------------
$job = begin_job($node, 'th_s', 'regress_slow', max_rate => '8MB', max_replica_lag => '4MB');
poll_until($node, "SELECT coalesce(max(blocks_done), 0) > 100 FROM index_mover_progress WHERE job = $job");
$standby->stop('immediate');
# the lag that is shown must be that of the slot, no longer that of the standby
poll_until($node, "SELECT count(*) FROM pg_stat_replication", '0', 'the end of the sender');
poll_until($node, <<SQL, '1', 'the wait for the lost standby');
SELECT count(*) FROM index_mover_progress, pg_replication_slots
 WHERE job = $job AND throttled_by IS NOT NULL AND wal_lag_bytes > $limit
   AND slot_name = 'standby' AND pg_current_wal_flush_lsn() - restart_lsn > $limit
SQL
let_process_sleep(worker_pid($node), 4);
my $stood = (look($job))[0];
let_process_sleep(worker_pid($node), 4);
is((look($job))[0], $stood, 'a standby that disappears with its slot stops the copy');
$standby->append_conf('postgresql.conf', 'recovery_min_apply_delay = 0');
$standby->start;
wait_for_job_end($node, $job);
is(status($job), 'moved', 'it goes on when the standby is back');
$node->wait_for_catchup($standby, 'replay');
is($standby->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM (SELECT s FROM th ORDER BY s) q"), '90000',
	'the standby has the moved index');

# ---------------------------------------------------------------------------
# One that is late on purpose: replay stands, or others write all the time
# ---------------------------------------------------------------------------
foreach my $case ([ 'stands', '1h' ], faults() ? [ 'goes on', '20s' ] : ())
{
	my ($replay, $delay) = @$case;
	my $name = "late on purpose, replay $replay";
	$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = '$delay'");
	$standby->reload;
	poll_until($standby, 'SHOW recovery_min_apply_delay', $delay, "$name: the delay");
	my $writer = IndexMover::Session->new($node);
	# commits are what the standby delays
	if ($replay eq 'stands') { $writer->run('INSERT INTO w VALUES (1)'); }
	else
	{
		$writer->send('DO $$ BEGIN LOOP INSERT INTO w SELECT generate_series(1, 500); COMMIT; PERFORM pg_sleep(0.05); END LOOP; END $$');
		poll_until($node, "SELECT replay_lag > interval '19 s' FROM pg_stat_replication", 't', "$name: others write");
	}
	my $log = -s $node->logfile;
	$job = begin_job($node, 'th_s', elsewhere($node, 'th_s'), max_replica_lag => '4MB');
	poll_until($node, "SELECT throttled_by ~ '^standby \"throttle_standby\" is [0-9]+ MB behind in replay\$' FROM index_mover_progress "
		. "WHERE job = $job", 't', "$name: the copy rests, and says why");
	$node->wait_for_log(joined(
		qr/LOG: .*: no longer resting for the replay of standby "throttle_standby"\n/,
		qr/.*DETAIL:  It is late whether the move rests or not/), $log);
	wait_for_job_end($node, $job);
	is(status($job), 'moved', "$name: in the end it goes on");
	is(sql("SELECT replay_lsn < pg_current_wal_lsn() - $limit FROM pg_stat_replication"), 't', "$name: the standby is still late");
	if ($replay ne 'stands')
	{
		sql('SELECT pg_cancel_backend(' . $writer->pid . ')');
		$writer->answer;
	}
	$writer->end;
}
$standby->append_conf('postgresql.conf', 'recovery_min_apply_delay = 0');
$standby->reload;
$node->wait_for_catchup($standby, 'replay');
$standby->stop;
sql("SELECT pg_drop_replication_slot('standby')");
sql("SELECT count(*) FROM move_indexes('th_s', 'regress_slow', method => 'copy')");

# ---------------------------------------------------------------------------
# A slot without a reader: waited for until it is below half of the limit; and
# alter_move()
# ---------------------------------------------------------------------------
sub slot_lag { return sql("SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = 'lazy'"); }

# Read the slot up to so many bytes behind.
sub read_slot
{
	sql("SELECT pg_replication_slot_advance('lazy', pg_current_wal_lsn() - $_[0])");
	return;
}

sql("SELECT pg_create_physical_replication_slot('lazy', true)");
my $to = elsewhere($node, 'th_s');
$job = begin_job($node, 'th_s', $to, max_replica_lag => '8MB');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND throttled_by IS NOT NULL AND wal_lag_bytes > 8 * 1024 "
	. "* 1024", '1', 'the wait for the slot');
my $stands = (look($job))[0];
read_slot(6 * 1024 * 1024);
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND wal_lag_bytes < 7 * 1024 * 1024", '1',
	'a look at the slot');
my ($stands_still, $throttled_then) = (look($job))[ 0, 5 ];
like($throttled_then, qr/^replication slot "lazy" is \d+ MB behind$/, 'below the limit, but not below half of it: it waits');
is($stands_still, $stands, 'and stands still');
read_slot(7 * 512 * 1024);
poll_until($node, "SELECT coalesce(max(blocks_done), 1000000) > $stands FROM index_mover_progress WHERE job = $job", 't',
	'the copy to go on');
pass('below half of it, it goes on');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND throttled_by IS NOT NULL AND wal_lag_bytes > 8 * 1024 "
	. "* 1024", '1', 'the next wait for the slot');
is(sql("SELECT alter_move($job, 'max_replica_lag', '0')"), 't', 'alter_move of max_replica_lag');
wait_for_job_end($node, $job);
is(status($job), 'moved', 'and it goes on to its end, whatever the slot');
sql("SELECT pg_drop_replication_slot('lazy')");
sql("SELECT count(*) FROM undo_move($job)");

# ---------------------------------------------------------------------------
# A slot without a reader, and that would be invalidated
# ---------------------------------------------------------------------------
# the limit is set when the copy is under way: it goes by what is in force
sql('CHECKPOINT');
sql("SELECT pg_create_physical_replication_slot('unread', true)");
my $log = -s $node->logfile;
$job = begin_job($node, 'th_s', 'regress_fast', max_rate => '4MB');
poll_until($node, "SELECT max(blocks_done) > 0 FROM index_mover_progress WHERE job = $job", 't', 'the copy to begin');
sql("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'");
sql('SELECT pg_reload_conf()');
$node->wait_for_log(qr/resting, because replication slot "unread" is \d+ bytes behind/, $log);
sql('SELECT pg_switch_wal()');
sql('CHECKPOINT');
$stood = (look($job))[0];
let_process_sleep(worker_pid($node), 4);
is((look($job))[0], $stood, 'the copy waits, although max_replica_lag is 0');
is(sql("SELECT bytes_per_second IS NULL AND eta IS NULL FROM index_mover_progress WHERE job = $job"), 't',
	'it has no rate, and no time left is known');
# (what is unused in its pages is not in the WAL)
my $logged = sql("SELECT wal_bytes / ((blocks_copied + blocks_recopied) * $page_size.0) FROM index_mover_history WHERE name = 'th_s' AND "
	. "method = 'copy' AND status = 'moved' ORDER BY job LIMIT 1");
cmp_ok($logged, '<=', 1.1, "of a byte $logged bytes are logged");
cmp_ok($stood * $page_size * $logged, '<', 14 * 1024 * 1024, 'before it has written as much as the slot may keep');
is(sql("SELECT wal_status IN ('reserved', 'extended') FROM pg_replication_slots WHERE slot_name = 'unread'"), 't',
	'the slot is not invalidated');
# (before any waiting call has its snapshot, which would hold back VACUUM)
sql('CREATE TABLE cold AS SELECT generate_series(1, 1000) AS i');
my $rebuild = start_call($node, 'rebuild',
	"SELECT status FROM move_indexes('w_i', 'regress_fast', method => 'rebuild', settings => '{\"progress_interval\": 300}')");
poll_until($node, "SELECT max(throttled_by) LIKE 'replication slot \"unread\" is % MB behind' FROM index_mover_progress WHERE name = 'w_i'",
	't', 'the rebuild to wait');
for (1 .. 600)
{
	last if !call_is_running($rebuild) || $rebuild->{err} =~ /behind/;
	usleep(100_000);
}
like($rebuild->{err}, qr/NOTICE: .*index "w_i": .*throttled by replication slot "unread" is \d+ MB behind$/m,
	'who waits for it is told for which slot');
my $cold = sql("SELECT max(job) FROM move_table('cold', 'regress_fast', wait => false, freeze_first => true)");
poll_until($node, "SELECT throttled_by LIKE 'replication slot \"unread\" is % MB behind' FROM index_mover_progress WHERE job = $cold", 't',
	'the move of a table to wait');
is(sql("SELECT relallvisible FROM pg_class WHERE relname = 'cold'"), '0',
	'VACUUM (FREEZE), which cannot be held back either, has not begun');
sql("SELECT pg_drop_replication_slot('unread')");
wait_for_job_end($node, $cold);
cmp_ok(sql("SELECT relallvisible FROM pg_class WHERE relname = 'cold' AND reltablespace > 0"), '>', 0,
	'VACUUM (FREEZE), and the move, begin then');
($rc, $out, $err) = finish_call($rebuild);
is($out, "moved\n", 'a rebuild waits before it begins');
sql("SELECT alter_move($job, 'max_rate', '0')");
wait_for_job_end($node, $job);
is(status($job), 'moved', 'it goes on when the slot is gone');
# a rebuild cannot be held back any more once it runs: it looks ahead.  (A slot
# begins at the last checkpoint, and shall not be far behind by itself.)
sql('CHECKPOINT');
sql("SELECT pg_create_physical_replication_slot('unread', true)");
$log = -s $node->logfile;
$rebuild = begin_job($node, 'th_s', elsewhere($node, 'th_s'), method => 'rebuild');
$node->wait_for_log(
	qr/no process reads replication slot "unread".*\n.*DETAIL:  A rebuild would bring it beyond max_slot_wal_keep_size/, $log);
like(sql("SELECT throttled_by FROM index_mover_progress WHERE job = $rebuild"), qr/^replication slot "unread" is \d+ MB behind$/,
	'a rebuild does not begin that would invalidate a slot');
is(sql("SELECT wal_status IN ('reserved', 'extended') FROM pg_replication_slots WHERE slot_name = 'unread'"), 't',
	'the slot is not invalidated');
sql("SELECT pg_drop_replication_slot('unread')");
wait_for_job_end($node, $rebuild);
is(status($rebuild), 'moved', 'it goes on when the slot is gone');
sql("SELECT count(*) FROM undo_move($rebuild)");

# one whose reader is there when it begins, but does not read: a rebuild is given
# up before it costs the slot.  (A page is logged without what is free in it, so
# the index must be full to be a danger.)
{
	my $directory = PostgreSQL::Test::Utils::tempdir();
	my $output = '';
	my $repeat = $page_size < 8192 ? 25 : 50;	# several entries to a page
	sql(<<"SQL");
CREATE TABLE full_pages (s text);
ALTER TABLE full_pages ALTER s SET STORAGE EXTERNAL;
INSERT INTO full_pages SELECT repeat(md5(g::text), $repeat) FROM generate_series(1, 1750000 / $repeat) g;
CREATE INDEX full_pages_s ON full_pages (s) TABLESPACE regress_slow;
SQL
	sql('CHECKPOINT');
	sql("SELECT pg_create_physical_replication_slot('stuck', true)");
	my $receiver = IPC::Run::start(
		[ 'pg_receivewal', '--no-loop', '--slot', 'stuck', '-D', $directory, '-d', $node->connstr('postgres') ],
		'<', \'', '>&', \$output);
	poll_until($node, "SELECT active FROM pg_replication_slots WHERE slot_name = 'stuck'", 't', 'a reader of the slot');
	$receiver->signal('STOP');
	($rc, $out, $err) = $node->psql('postgres',
		"SELECT status, sqlstate, detail FROM move_indexes('full_pages_s', 'regress_fast', method => 'rebuild')");
	like($out, joined(
		qr/^failed\|53400\|gave up rebuilding index "full_pages_s", which would invalidate replication slot "stuck": The /,
		qr/slot was \d+ MB behind, and max_slot_wal_keep_size is 16 MB\.$/),
		'a rebuild is given up for a slot whose reader does not keep up');
	is(sql("SELECT spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace WHERE relname = 'full_pages_s'"), 'regress_slow',
		'the index is where it was');
	leftovers_ok($node, 'given up for a slot', within => 5);
	isnt(sql("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'stuck'"), 'lost', 'the slot is not invalidated');
	$receiver->signal('KILL');
	$receiver->finish;
	poll_until($node, "SELECT active FROM pg_replication_slots WHERE slot_name = 'stuck'", 'f', 'the end of the reader');
	sql("SELECT pg_drop_replication_slot('stuck')");
	is(sql("SELECT status FROM move_indexes('full_pages_s', 'regress_fast', method => 'rebuild')"), 'moved',
		'without the slot it is rebuilt');
	sql('DROP TABLE full_pages');
}
sql('ALTER SYSTEM RESET max_slot_wal_keep_size');
sql('SELECT pg_reload_conf()');

# ---------------------------------------------------------------------------
# A rate at which the copy would not end
# ---------------------------------------------------------------------------
{
	my $log = -s $node->logfile;
	my $writer = start_call($node, 'random_keys',
		"DO 'BEGIN LOOP INSERT INTO th SELECT 0, md5(random()::text) FROM generate_series(1, 300); COMMIT; END LOOP; END'");
	$job = begin_job($node, 'th_s', 'regress_slow', max_rate => '1MB');
	my $told = eval { $node->wait_for_log(qr/WARNING:.*index "th_s" changes nearly as fast as max_rate lets it be copied/, $log); 1 };
	ok($told, 'a WARNING in the log says that the rate is too low');
	like(PostgreSQL::Test::Utils::slurp_file($node->logfile, $log),
		qr/HINT:.*SELECT index_mover_call\.alter_move\($job, 'max_rate', '\d+MB'\).*\n.*CONTEXT:  job $job \(postgres, by postgres\)$/m,
		'the WARNING says what to raise, of which job and database');
	is((look($job))[1], -1, 'and there is no time left to tell');
	cmp_ok(sql("SELECT eta IS NULL AND status = 'running' FROM index_mover_jobs WHERE job = $job"), 'eq', 't', 'nor for the job');
	sql("SELECT cancel_move($job)");
	wait_for_job_end($node, $job);
	sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'random_keys'");
	finish_call($writer);
	leftovers_ok($node, 'a rate that was too low', within => 5);
}

# Nor do rests for others hide it, however often they come.
{
	my $log = -s $node->logfile;
	my $writer = start_call($node, 'random_keys',
		"DO 'BEGIN LOOP INSERT INTO th SELECT 0, md5(random()::text) FROM generate_series(1, 300); COMMIT; END LOOP; END'");
	$job = begin_job($node, 'th_s', 'regress_slow', max_rate => '1MB');
	my $told;
	for (my $i = 0; $i < 30 && !$told; $i++)
	{
		usleep(1_500_000);
		sql("SELECT pause_move($job)");
		usleep(400_000);
		sql("SELECT resume_move($job)");
		$told = slurp_file($node->logfile, $log) =~ /WARNING:.*index "th_s" changes nearly as fast as max_rate lets it be copied/;
	}
	ok($told, 'a WARNING says that the rate is too low, though the copy rests for others again and again');
	sql("SELECT cancel_move($job)");
	wait_for_job_end($node, $job);
	sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'random_keys'");
	finish_call($writer);
}

# What has changed during a pause says nothing about the rate.
{
	sql('CREATE TABLE held_up AS SELECT * FROM th LIMIT 45000; CREATE INDEX held_up_s ON held_up (s) TABLESPACE regress_slow; VACUUM '
		. 'ANALYZE held_up');
	my $log = -s $node->logfile;
	my $total = sql("SELECT pg_relation_size('held_up_s') / current_setting('block_size')::int");
	$job = begin_job($node, 'held_up_s', 'regress_fast', max_rate => '2MB');
	poll_until($node, "SELECT blocks_done > 0.75 * $total FROM index_mover_progress", 't', 'three quarters copied');
	sql("SELECT pause_move($job)");
	poll_until($node, 'SELECT throttled_by FROM index_mover_progress', 'pause_move()', 'paused behind them');
	sql('DELETE FROM held_up WHERE i % 2 = 0');
	sql('VACUUM held_up');
	sql("SELECT resume_move($job)");
	wait_for_job_end($node, $job);
	is(status($job), 'moved', 'a pause in which much changed: moved');
	cmp_ok(sql("SELECT blocks_recopied FROM index_mover_history WHERE job = $job"), '>', 0.6 * $total,
		'a pause in which much changed: it was copied again');
	unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $log), qr/WARNING:/,
		'a pause in which much changed: no WARNING that max_rate is too low');
	sql('DROP TABLE held_up');
}

# ---------------------------------------------------------------------------
# Space
# ---------------------------------------------------------------------------
($rc, $out, $err) = $node->psql('postgres',
	"SELECT status, sqlstate, detail FROM move_indexes('th_s', 'regress_slow', method => 'copy', settings => "
		. "'{\"min_free_space\": \"100%\"}')");
like($out, joined(
	qr/^failed\|53100\|not enough free space in tablespace "regress_slow": The move needs \d+ bytes, \d+ bytes are /,
	qr/free, of which \d+ must stay free\.$/),
	'no room: refused before the start, with the numbers');
my ($copy_needs) = $out =~ /The move needs (\d+) bytes/;
cmp_ok($copy_needs, '>=', $size, 'the whole index is needed');
($rc, $out, $err) = $node->psql('postgres',
	"SET maintenance_work_mem = '1MB'; SELECT status, sqlstate, detail FROM move_indexes('th_s', 'regress_slow', method => 'rebuild', "
		. "settings => '{\"min_free_space\": \"100%\"}')");
my ($rebuild_needs) = $out =~ /^failed\|53100\|not enough free space in tablespace "regress_slow": The move needs (\d+) bytes/m;
cmp_ok($rebuild_needs || 0, '>', $copy_needs + $size / 2,
	'a rebuild that sorts on disk needs room for that, too, on the same file system at the same time');
like(sql("SELECT detail FROM move_indexes('th_s', 'regress_slow', 'rebuild', dry_run => true, settings => "
	. "'{\"max_rate\": \"1MB\", \"max_replica_lag\": \"1MB\", \"swap_after\": \"infinity\"}')"),
	qr/A rebuild obeys neither max_rate nor swap_after\./,
		'a rebuild says what it does not obey');
like(sql("SELECT detail FROM move_indexes('th_s', 'regress_slow', dry_run => true, settings => '{\"min_free_space\": \"100%\"}')"),
	qr/Does not fit: .* needs \d+ MB; .* free, .* reserved by index_mover\.min_free_space\. Writes \d+ MB of WAL\.$/,
		'a plan says so beforehand');
$job = begin_job($node, 'th_s', 'regress_slow', max_rate => '2MB');
poll_until($node, "SELECT coalesce(max(blocks_done), 0) > 100 FROM index_mover_progress WHERE job = $job");
sql("SELECT alter_move($job, 'min_free_space', '100%')");
poll_until($node, "SELECT throttled_by ~ '^free space in ' FROM index_mover_progress WHERE job = $job", 't', 'no room any more: a rest');
sql("SELECT alter_move($job, 'min_free_space', '0')");
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'max_rate', 'room again: the copy goes on');
sql("SELECT alter_move($job, 'lock_wait', '200ms')");
sql("SELECT alter_move($job, 'min_free_space', '100%')");
wait_for_job_end($node, $job);
is(status($job), 'failed 53100', 'no room any more: stopped in mid-copy');
is(sql("SELECT spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace WHERE relname = 'th_s'"), 'regress_fast',
	'the index is where it was');
leftovers_ok($node, 'no room', within => 2);
files_ok($node, 'no room');
verdict_ok($node, 'th', 'at the end', max_keys => 200, large => 1);
$looker->end;

done_testing();
