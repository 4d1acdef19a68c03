# A move never fills a disk: a copy that sees too little free space for pg_wal, or on its
# target, rests, has WAL removed by a checkpoint, names who keeps it otherwise, goes on when
# there is space, and gives up after lock_wait.  One that frees the disk on which pg_wal is
# works with less, and one that is finished goes on to its swap.  (What does not fit is not
# begun: t/031_copy_storage.pl.  A disk of some gigabytes, from 97 % to 80 %: bench/full.)
#
# Fault (storage): pg_wal's file system is full in mid-copy: of WAL that goes, or that a slot
#   or the archiver keeps, or of others' files; and it is that which the move frees
# Fault (storage): the clock is set back while a copy rests for free space, and while it waits for
#   its lock
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::Local qw(timegm);

needs_test_points();
my $clock = preload_library('clock');

# every move keeps 48 MB free, but one that frees the disk 8 MB
my $node = new_node('space', extra => [ '--wal-segsize=4' ], conf => <<CONF);
wal_level = replica
max_replication_slots = 4
archive_mode = on
archive_command = 'true'
checkpoint_timeout = 30s
checkpoint_completion_target = 0.05
min_wal_size = 8MB
max_wal_size = 16MB
index_mover.min_free_space = '48MB'
index_mover.lock_wait = 0
index_mover.resumable_size = -1
CONF
sub sql { return $node->safe_psql('postgres', $_[0]); }
sql(<<'SQL');
CREATE TABLE sp (i int, s text);
INSERT INTO sp SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 110000) g;
CREATE INDEX sp_i ON sp (i);
SELECT oracle.remember_keys('sp'), oracle.remember_metadata('sp');
SQL
cmp_ok(sql("SELECT pg_relation_size('sp')"), '>', 16 << 20, 'the table is larger than max_wal_size');
my $disk = $node->basedir . '/disk';
$node->stop('fast');
my $problem = do { local $ENV{LD_PRELOAD} = $clock; start_with_file_system($node, $disk, '96m', wal => 1) };
plan skip_all => "cannot mount a small file system in a namespace of its own: $problem" if $problem;
set_tests($node, test_mutation => 'least-reserved:' . (4 << 20));
sql("CREATE TABLESPACE regress_disk LOCATION '$disk/tablespace'");

# Leave so many megabytes free.
sub fill
{
	my ($megabytes) = @_;
	sql(q{COPY (SELECT 1) TO PROGRAM 'rm -f pg_wal/fill; dd if=/dev/zero of=pg_wal/fill bs=1k }
		. "count=\$((\$(df -k --output=avail pg_wal | tail -1) - 1024 * $megabytes)) 2>/dev/null'");
	return;
}
sub free { return sql(q{COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; rm -f pg_wal/fill'}); }

my $job;
sub rests_ok
{
	my ($why, $name) = @_;
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", $why, $name);
	return;
}

# What can be done, and the commands.
sub choices
{
	return sql("SELECT substring(choice FROM '^[^:]*'), command FROM index_mover_explain($job)");
}

# Wait until something is copied.
sub is_copied
{
	poll_until($node, "SELECT EXISTS (SELECT FROM index_mover_progress WHERE job = $job AND blocks_done > 0)", 't', 'a copy');
	return;
}

sub moves_ok
{
	my ($name) = @_;
	wait_for_job_end($node, $job);
	is(sql("SELECT status, message FROM index_mover_history WHERE job = $job AND name = 'sp'"), 'moved|', "$name: moved");
	verdict_ok($node, 'sp', $name, max_keys => 300);
	return;
}

sub begin
{
	my ($to, %settings) = @_;
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	$job = sql("SELECT max(job) FROM move_table('sp', '$to', wait => false, settings => '{$json}')");
	return;
}

# ---- WAL that a slot keeps, and that a checkpoint removes ----------------------------------
sql($_) foreach "SELECT pg_create_physical_replication_slot('regress_stuck', true)", 'SELECT pg_switch_wal()';
my $log = -s $node->logfile;
begin('regress_fast', max_rate => '4MB');
is_copied();
fill(50);
rests_ok('free space in pg_wal: replication slot "regress_stuck" keeps WAL, without limit', 'a slot keeps WAL');
is(sql("SELECT kind, object, detail ~ '\"regress_stuck\" keeps WAL' FROM index_mover_check('0 s') WHERE kind = 'resting job'"),
	"resting job|job $job|t", 'a slot keeps WAL: index_mover_check()');
is(choices(), join("\n", 'drop the slot|SELECT pg_catalog.pg_drop_replication_slot(\'regress_stuck\');',
		"use all free space|SELECT index_mover_call.alter_move($job, 'min_free_space', '0');", 'wait|',
		"end the job|SELECT index_mover_call.cancel_move($job);"),
	'a slot keeps WAL: what can be done');
sql("SELECT alter_move($job, 'max_rate', '0')");
sql("SELECT pg_drop_replication_slot('regress_stuck')");
# no space comes but by the checkpoint that the copy asks for; so it soon rests again
ok($node->wait_for_log(qr/: asks for a checkpoint, to have free space in pg_wal\n(?s:.*): resting for free space in pg_wal/, $log),
	'the slot is gone: it asks for a checkpoint, and goes on');
free();
moves_ok('the slot is gone');

# ---- by the archiver -----------------------------------------------------------------
free();
sql($_) foreach q{ALTER SYSTEM SET archive_command = 'exit 1'}, 'SELECT pg_reload_conf()', 'SELECT pg_switch_wal()';
poll_until($node, 'SELECT failed_count > 0 FROM pg_stat_archiver', 't', 'the archiver to fail');
begin('regress_slow', max_rate => '4MB', lock_wait => '1s');
is_copied();
fill(50);
rests_ok('free space in pg_wal: the archiver keeps WAL', 'the archiver keeps WAL');
like(choices(), qr/^see why the archiver fails\|SELECT \* FROM pg_catalog\.pg_stat_archiver;\n/, 'the archiver keeps WAL: where to look');
wait_for_job_end($node, $job);
like(sql("SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job AND name = 'sp'"),
	qr/^failed\|53100\|not enough free space in pg_wal: .* bytes are free, of which \d+ must stay free, and the archiver keeps WAL\.$/,
	'lock_wait is over');
leftovers_ok($node, 'lock_wait is over', within => 5);
# what the archiver has kept over a checkpoint, it keeps: what cannot fit is not begun
sql('CHECKPOINT');
fill(60);
$job = sql("SELECT max(job) FROM move_table('sp', 'regress_slow', settings => '{\"lock_wait\": \"2s\"}')");
like(sql("SELECT status, message FROM index_mover_history WHERE job = $job AND name = 'sp'"),
	qr/^failed\|not enough free space in pg_wal: The move needs /, 'the archiver keeps WAL: what cannot fit is not begun');
sql($_) foreach q{ALTER SYSTEM SET archive_command = 'true'}, 'SELECT pg_reload_conf()';
poll_until($node, 'SELECT last_archived_time > last_failed_time FROM pg_stat_archiver', 't', 'the archiver to succeed');

# ---- others' files ----------------------------------------------------------------
fill(20);
begin('regress_slow');
rests_ok('free space in pg_wal, without limit', 'others have filled the disk');
# it looks again, also while the time of its last look is ahead
append_to_file($ENV{CLOCK}, '');
cmp_ok(sql('SELECT extract(epoch FROM now())'), '<', time - 1800, 'the clock is set back');
free();
poll_until($node, "SELECT count(*) = 0 FROM index_mover_progress WHERE job = $job AND throttled_by <> ''", 't', 'the rest to end');
unlink $ENV{CLOCK};
moves_ok('others have freed it');

# ---- a finished copy: its swap needs next to nothing ------------------------------------
my $holder = IndexMover::Session->new($node);
foreach my $case ([ 'regress_fast', 10, 'few changes', 10 ], [ 'regress_slow', 34, 'many changes', 3000 ])
{
	my ($to, $megabytes, $name, $rows) = @$case;
	$holder->run('BEGIN; SELECT count(*) FROM sp');
	begin($to);
	wait_for_phase($node, 'waiting for lock to swap');
	fill($megabytes);
	sql("UPDATE sp SET s = s WHERE ctid IN (SELECT ctid FROM sp LIMIT $rows)");
	$holder->run('COMMIT');
	moves_ok("a finished copy, $name, $megabytes MB are free");
	free();
}

# ---- a clock that is set back while a copy waits for its lock -----------------------------
# It does not queue behind a reader of all of it, but behind the query that comes then.
my $query = IndexMover::Session->new($node);
$holder->run(q{BEGIN; COPY (SELECT * FROM sp LIMIT 1) TO '/dev/null'});
begin('regress_fast', lock_timeout => '20s');
wait_for_phase($node, 'waiting for lock to swap');
$query->run('BEGIN; SELECT FROM sp LIMIT 1');
append_to_file($ENV{CLOCK}, '');
cmp_ok(sql('SELECT extract(epoch FROM now())'), '<', time - 1800, 'the clock is set back');
$holder->run('COMMIT');
poll_until($node, q{SELECT count(*) FROM pg_locks WHERE relation = 'sp'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted},
	'1', 'a bid, by a clock that was set back');
unlink $ENV{CLOCK};
$query->run('COMMIT');
$query->end;
moves_ok('a clock that was set back');

# ---- one process, two copies -----------------------------------------------------------
sql(<<'SQL');
CREATE SCHEMA two;
CREATE TABLE two.a AS SELECT * FROM sp LIMIT 20000;
CREATE TABLE two.b AS SELECT * FROM sp LIMIT 24000;
SQL
sub begin_two
{
	my ($to) = @_;
	$log = -s $node->logfile;
	$job = sql("SELECT max(job) FROM move_schema_tables('two', '$to', wait => false, settings => "
		. q{'{"max_workers": "1", "lock_wait": "1s", "max_rate": "2MB", "on_blocker": "wait"}')});
	return;
}
sub two
{
	return sql("SELECT string_agg(concat_ws(' ', name, status, sqlstate), ', ' ORDER BY name) FROM index_mover_history "
		. "WHERE job = $job AND kind = 'table'");
}
fill(20);
begin_two('regress_fast');
wait_for_job_end($node, $job);
is(two(), 'two.a failed 53100, two.b failed 53100', 'a rest in vain');
my @rests = slurp_file($node->logfile, $log) =~ /: resting for free space/g;
is(@rests, 1, 'a rest in vain: the next copy does not rest');
free();

$holder->run('BEGIN; LOCK TABLE two.b');
sql($_) foreach 'CHECKPOINT', "SELECT pg_create_physical_replication_slot('regress_stuck', true)", 'SELECT pg_switch_wal()';
begin_two('regress_slow');
is_copied();
fill(49);
wait_for_phase($node, 'waiting for lock to start');
sql("SELECT pg_drop_replication_slot('regress_stuck')");
$holder->run('COMMIT');
ok($node->wait_for_log(qr/: asks for a checkpoint, to have free space in pg_wal/, $log),
	'a rest in vain for WAL that was kept: the next copy looks who keeps it now');
free();
wait_for_job_end($node, $job);
is(two(), 'two.a failed 53100, two.b moved', 'a rest in vain for WAL that was kept: the next copy goes on');
$holder->end;

# ---- the disk that the move frees ------------------------------------------------------
begin('regress_disk', min_free_space => '0');
moves_ok('to the disk');
fill(30);
is(sql("SELECT sum((detail ~ 'Does not fit')::int) FROM evacuate_tablespace('regress_disk', 'regress_fast', dry_run => true)"),
	'0', 'a nearly full disk: the plan');
my $samples = $node->basedir . '/samples';
sql("COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; (touch $samples; while [ -e $samples ]; "
	. "do df -k --output=avail pg_wal | tail -1 >> $samples; sleep 0.02; done) "
	. "> /dev/null 2>&1 &'");
$log = -s $node->logfile;
$job = sql("SELECT max(job) FROM evacuate_tablespace('regress_disk', 'regress_fast', wait => false)");
moves_ok('a nearly full disk');
my ($least) = sort { $a <=> $b } split /\n/, slurp_file($samples);
unlink $samples;
note "a nearly full disk: $least kB were free at least";
cmp_ok($least, '>=', 9 << 10, 'a nearly full disk: a third of what was free stays free');

# ---- checkpoints that the copies have asked for --------------------------------------------
my $whole = slurp_file($node->logfile);
my @asked = map { timegm(0, @$_[4, 3, 2], $_->[1] - 1, $_->[0]) + $_->[5] }
  map { /^(\d+)-(\d+)-(\d+) (\d+):(\d+):([\d.]+) .*: asks for a checkpoint/ ? [ $1, $2, $3, $4, $5, $6 ] : () } split /\n/, $whole;
# the time of a checkpoint is known in seconds; an hour before means that the clock was set back
my @soon = grep { my $pause = $asked[$_] - $asked[ $_ - 1 ]; $pause > -60 && $pause < 30 / 5 - 1 } 1 .. $#asked;
cmp_ok(scalar @asked, '>=', 2, 'copies have asked for checkpoints');
is(@soon, 0, 'no two within a fifth of checkpoint_timeout') or diag join ' ', @asked;
like($whole, qr/checkpoint starting: force$/m, 'a checkpoint that a copy asks for is spread');
unlike($whole, qr/checkpoint starting: (?:immediate|fast) force$/m, 'and none is immediate');

$node->stop('immediate');
done_testing();
