# Partitions that a worker copies, and swaps, together (t/108_table_turns.pl has how they come together, and part):
# whatever meets them in the middle, each is moved or where it was, whole, with a row that says so; the job goes on or
# ends; no file, no lock and no row of the ledger stays.
#
# Fault (processes): partitions are moved together: the worker, the job or the server ends under the lock, behind the
#   commit or while their old files are removed; the owner of one cancels its move while all are copied, wait or are
#   locked; a pause, and a cancel in it; one is dropped, or held by a session with on_blocker = fail; one is locked,
#   or used all the time, while the others are not in use; a cancel that keeps the copies
# Fault (storage): partitions are moved together to where some of them fit
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

needs_test_points();

# (so that a slow machine is not taken for one that can only swap a few)
my $node = new_node('together', conf => "max_worker_processes = 20\nindex_mover.max_workers = 1\nindex_mover.max_lock_time = 1min");
my $can_go_on = $node->pg_version >= 17;
if ($can_go_on)
{
	# (without the library it is not known whether a device has kept a file)
	$node->append_conf('postgresql.conf',
		"summarize_wal = on\nshared_preload_libraries = 'index_mover'\nindex_mover.resumable_size = '64kB'");
	$node->restart;
}
sub sql { return $node->safe_psql('postgres', $_[0]); }
sql(<<'SQL');
CREATE ROLE regress_mover; CREATE ROLE regress_owner; GRANT regress_owner TO regress_mover;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_mover, regress_owner;
GRANT ALL ON SCHEMA public TO regress_mover, regress_owner;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_mover, regress_owner;
SET ROLE regress_mover;
CREATE TABLE p (i int, t text) PARTITION BY RANGE (i) TABLESPACE regress_slow;
SELECT format('CREATE TABLE p%s PARTITION OF p FOR VALUES FROM (%s) TO (%s)', g, g * 100, g * 100 + 100) FROM generate_series(1, 8) g \gexec
CREATE TABLE q (i int) PARTITION BY RANGE (i) TABLESPACE regress_slow;
SELECT format('CREATE TABLE q%s PARTITION OF q FOR VALUES FROM (%s) TO (%s)', g, g * 100, g * 100 + 100) FROM generate_series(1, 6) g \gexec
INSERT INTO q SELECT 100 + g % 600 FROM generate_series(1, 6000) g;
INSERT INTO p SELECT 100 + g % 800, repeat('x', 500) FROM generate_series(1, 4000) g;
ALTER TABLE p3 OWNER TO regress_owner;
RESET ROLE;
-- (the smallest ones come first, and VACUUM FULL of one below is to change no order)
VACUUM FULL p;
SQL
my $rows = sql('SELECT count(*), sum(hashtextextended(p::text, 0)) FROM p');
my $query = 'BEGIN; SELECT count(*) FROM p';
our ($table, $mutation) = ('p', '');
my ($from, $to) = ('regress_slow', 'regress_fast');

sub waits_ok
{
	my ($job, $name) = @_;
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND name = '$name' AND blocked_by <> '{}'", '1',
		"$name waits for its lock");
	return;
}

# Have the worker begin with five of them, p2 to p6 with their TOAST, while a session holds what it has locked by $holds.
# It comes to a point then.
sub take
{
	my ($holds, $point, $settings) = @_;
	my ($first, $holder, $gate) = map { IndexMover::Session->new($node) } 1 .. 3;
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	$first->run("BEGIN; SELECT count(*) FROM $table");
	set_tests($node, test_point => join(',', 'next-item:2:wait', $point // ()), test_mutation => $mutation);
	my $log = -s $node->logfile;
	my $role = $settings ? '' : 'SET ROLE regress_mover; ';
	my $job = sql("${role}SELECT max(job) FROM move_table('$table', '$to', wait => false" . ($settings // '') . ')');
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND blocked_by <> '{}'", '1', 'the first one waits');
	$first->end;
	$node->wait_for_log(qr/test point "next-item": waiting/, $log);
	$holder->run($holds);
	$gate->end;
	return ($job, $holder, $log);
}

sub at_point
{
	my ($point, $log) = @_;
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	return;
}

# Take the second lock of the test points.
sub gate
{
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5960)');
	return $gate;
}

# The partitions by how their moves have ended.
sub ends
{
	my ($job) = @_;
	return sql("SELECT string_agg(names || ' ' || state, ', ' ORDER BY names) FROM (SELECT string_agg(name, ' ' ORDER BY name) AS names, "
		. "concat_ws(' ', status, sqlstate) AS state FROM index_mover_history WHERE job = $job AND kind = 'table' GROUP BY 2) r");
}

# The partitions that are where they should have come to.
sub moved
{
	my ($place) = @_;
	return sql("SELECT string_agg(c.oid::regclass::text, ' ' ORDER BY c.oid) FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace "
		. "WHERE spcname = '$place' AND relname ~ '^$table\\d'");
}

my $all = join ' ', map { "p$_" } 1 .. 8;

# Whole, with nothing left; and the next call moves the rest.  Then they go the other way.
sub whole_ok
{
	my ($name, $expected) = @_;
	wait_for_no_worker($node);
	set_tests($node);
	is(moved($to), $expected, "$name: where they are");
	is(sql('SELECT count(*), sum(hashtextextended(p::text, 0)) FROM p'), $rows, "$name: the same rows");
	sql('SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	sql("BEGIN; LOCK TABLE p IN ACCESS EXCLUSIVE MODE NOWAIT; COMMIT; SELECT max(job) FROM move_table('p', '$to')") ;
	is(moved($to), sql('SELECT to_regclass(\'p6\')') eq '' ? $all =~ s/p6 //r : $all, "$name: the next call moves the rest");
	($from, $to) = ($to, $from);
	return;
}

# ---- the worker, or the server, ends -------------------------------------------------------------
my $five = 'p1 p2 p3 p4 p5 p6';
my %ends = ('copy-half:4' => 'p1', 'swap-file-set:10' => 'p1', 'swap-before-commit:2' => 'p1', 'swapped:2' => $five,
	'old-file-dropped:9' => $five);
foreach my $case (picked { "@$_" =~ /^(?:kill (?:copy-half|swapped|old)|immediate swap-file)/ } 'ends',
	map { [ 'kill', $_ ], [ 'immediate', $_ ] } sort keys %ends)
{
	my ($how, $point) = @$case;
	my $name = "$how at $point";
	my $gate = $how eq 'kill' ? undef : gate();
	my ($job, $holder, $log) = take($query, "$point:" . ($how eq 'kill' ? 'kill' : 'wait2'));
	waits_ok($job, 'p2') unless $point =~ /copy/;
	$holder->end;
	if ($gate)
	{
		at_point($point =~ s/:.*//r, $log);
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		$node->wait_for_log(qr/terminated by signal 9/, $log);
		wait_until_up($node);
	}
	set_tests($node);
	is(ends($job), 'p1 moved, ' . ($all =~ s/p1 //r) . ' interrupted', "$name: the rows");
	whole_ok($name, $ends{$point});
}

# ---- the job, or its worker, is ended ------------------------------------------------------------
foreach my $point ('swap-file-set:10', 'swapped:2')
{
	my %rows = ('swap-file-set:10 cancel' => 'p1 moved, p2 p3 p4 p5 p6 p7 p8 canceled 57014',
		'swap-file-set:10 terminate' => 'p1 moved, p2 p3 p4 p5 p6 p7 p8 canceled 57P01',
		'swapped:2 cancel' => "$five moved, p7 p8 canceled 57014",
		'swapped:2 terminate' => 'p1 moved, p2 p3 p4 p5 p6 moved 57P01, p7 p8 canceled 57P01');
	foreach my $how (picked { ($point =~ /set/) == ($_ =~ /terminate/) } "ends of the job at $point", 'SELECT cancel_move(%s)',
		'SELECT pg_terminate_backend(pid) FROM index_mover_progress WHERE job = %s')
	{
		my ($end) = $how =~ /(cancel|terminate)/;
		my $name = "$end at $point";
		my $gate = gate();
		my ($job, $holder, $log) = take($query, "$point:wait2");
		$holder->end;
		at_point($point =~ s/:.*//r, $log);
		sql(sprintf $how, $job);
		wait_for_job_end($node, $job);
		$gate->end;
		is(ends($job), $rows{"$point $end"}, "$name: the rows");
		whole_ok($name, $point =~ /swapped/ ? $five : 'p1');
	}
}

# ---- the owner of one ----------------------------------------------------------------------------
foreach my $point (picked { !/half/ } 'cancels by an owner', 'copy-half:4', 'the wait', 'swap-before-commit:2')
{
	my $name = "the owner at $point";
	my $gate = gate();
	my ($job, $holder, $log) = take($query, $point =~ /:/ ? "$point:wait2" : ());
	waits_ok($job, 'p2') if $point =~ /wait/;
	$holder->end unless $point =~ /wait/;
	at_point($point =~ s/:.*//r, $log) unless $point =~ /wait/;
	sql("SET ROLE regress_owner; SELECT cancel_move($job)");
	$gate->end;
	if ($point =~ /wait/)
	{
		$node->wait_for_log(qr/one after the other, and not together/, $log);
		$holder->end;
	}
	wait_for_job_end($node, $job);
	is(ends($job), 'p1 p2 p4 p5 p6 p7 p8 moved, p3 skipped 57014', "$name: the rows");
	whole_ok($name, $all =~ s/p3 //r);
}

# ---- a pause -------------------------------------------------------------------------------------
foreach my $case (picked { ($_->[0] eq 'the wait') == ($_->[1] eq 'cancel_move') } 'pauses', [ 'copy-half:4', 'resume_move' ],
	[ 'the wait', 'resume_move' ], [ 'copy-half:4', 'cancel_move' ], [ 'the wait', 'cancel_move' ])
{
	my ($point, $then) = @$case;
	my $name = "a pause at $point, and $then()";
	my $gate = gate();
	my ($job, $holder, $log) = take($query, $point =~ /:/ ? "$point:wait2" : ());
	if ($point =~ /wait/) { waits_ok($job, 'p2') }
	else { at_point($point =~ s/:.*//r, $log) }
	sql("SELECT pause_move($job)");
	$gate->end;
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'it rests');
	$holder->end;
	is(moved($to), 'p1', "$name: nothing more is moved");
	my $ddl = IndexMover::Session->new($node);
	$ddl->run('VACUUM FULL p4; ALTER TABLE p7 ADD CHECK (i > 0)');
	is($ddl->errors, '', "$name: DDL passes");
	$ddl->run('ALTER TABLE p7 DROP CONSTRAINT p7_i_check');
	$ddl->end;
	sql("SELECT $then($job)");
	wait_for_job_end($node, $job);
	my $canceled = $then =~ /cancel/;
	is(ends($job), $canceled ? 'p1 moved, ' . ($all =~ s/p1 //r) . ' canceled 57014' : "$all moved", "$name: the rows");
	whole_ok($name, $canceled ? 'p1' : $all);
}

# ---- one is held, with on_blocker = fail ---------------------------------------------------------
{
	my ($job, $holder) = take('BEGIN; LOCK TABLE p5 IN ROW EXCLUSIVE MODE', undef,
		', settings => \'{"on_blocker": "fail", "lock_wait": "3s"}\'');
	wait_for_job_end($node, $job);
	$holder->end;
	is(ends($job), 'p1 p2 p3 p4 p6 p7 p8 moved, p5 failed 55P03', 'one is held: the rows');
	whole_ok('one is held', $all =~ s/p5 //r);
}

# ---- they part, and the time is over -------------------------------------------------------------
{
	my $gate = gate();
	my ($job, $holder, $log) = take('BEGIN; LOCK TABLE p3 IN ACCESS EXCLUSIVE MODE', 'put-back:wait2');
	at_point('put-back', $log);
	sql("SELECT alter_move($job, 'max_duration', '1s')");
	my $altered = sql('SELECT clock_timestamp()');
	poll_until($node, "SELECT clock_timestamp() > timestamptz '$altered' + interval '1s'", 't', 'a second');
	$gate->end;
	wait_for_job_end($node, $job);
	$holder->end;
	is(sql("SELECT string_agg(names || ': ' || message, ', ' ORDER BY names) FROM "
		. "(SELECT string_agg(name, ' ' ORDER BY name) AS names, message FROM index_mover_history "
		. "WHERE job = $job AND kind = 'table' AND status = 'skipped' GROUP BY 2) r"),
		'p2 p3 p4 p5 p6: not finished: index_mover.max_duration was over, p7 p8: not started: index_mover.max_duration was over',
		'they part, and the time is over: the rows');
	whole_ok('they part, and the time is over', 'p1');
}

# ---- a lock of another session has parted them, and the next ones are moved together -------------
{
	local $mutation = 'parted:1';
	my $gate = gate();
	my ($job, $holder, $log) = take('BEGIN; LOCK TABLE p3 IN ACCESS EXCLUSIVE MODE', 'put-back:wait2');
	my $other = IndexMover::Session->new($node);
	at_point('put-back', $log);
	$holder->run('COMMIT; BEGIN; SELECT count(*) FROM p6');
	$other->run('BEGIN; SELECT count(*) FROM p7');
	$gate->end;
	waits_ok($job, 'p6');
	$holder->end;
	waits_ok($job, 'p7');
	is(sql("SELECT string_agg(name, ' ' ORDER BY name) FROM index_mover_history WHERE job = $job AND kind = 'table' "
		. "AND status = 'running'"),
		'p7 p8', 'parted by a lock: the next ones are moved together');
	$other->end;
	wait_for_job_end($node, $job);
	whole_ok('parted by a lock', $all);
}

# ---- one is dropped ------------------------------------------------------------------------------
{
	my $gate = gate();
	my ($job, $holder, $log) = take('BEGIN', 'copy-half:4:wait2');
	at_point('copy-half', $log);
	my $ddl = IndexMover::Session->new($node);
	$ddl->send('ALTER TABLE p DETACH PARTITION p6; DROP TABLE p6');
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'", '1', 'DROP TABLE waits');
	$gate->end;
	$ddl->answer;
	$_->end foreach $ddl, $holder;
	wait_for_job_end($node, $job);
	is(ends($job), 'p1 p2 p3 p4 p5 p7 p8 moved, public.p6 skipped 42704', 'one is dropped: the rows');
	$rows = sql('SELECT count(*), sum(hashtextextended(p::text, 0)) FROM p');
	whole_ok('one is dropped', $all =~ s/p6 //r);
}

# ---- one keeps the others waiting no longer than alone -------------------------------------------
# They are all that is left of the job, so none gives its turn.
{
	local ($table, $mutation) = ('q', 'patience:1500');
	my @before = ($from, $to);
	($from, $to) = ('regress_slow', 'regress_fast');
	foreach my $case ([ 'is used all the time', 'BEGIN' ], [ 'is locked', 'BEGIN; LOCK TABLE q4 IN ACCESS EXCLUSIVE MODE' ])
	{
		my ($what, $holds) = @$case;
		my @users;
		# (a bid of a millisecond meets no moment without them)
		if ($holds eq 'BEGIN')
		{
			@users = map { IndexMover::Session->new($node) } 1 .. 3;
			$_->send("DO 'BEGIN LOOP PERFORM count(*) FROM q4; PERFORM pg_sleep(0.2 + 0.3 * random()); COMMIT; END LOOP; END'")
				foreach @users;
		}
		my ($job, $holder, $log) = take($holds, undef, q(, settings => '{"lock_timeout": "1ms"}'));
		poll_until($node, "SELECT count(*) FROM index_mover_history WHERE job = $job AND kind = 'table' AND status = 'moved'", '5',
			"one $what: the others are moved", timeout => 10);
		is(ends($job), 'q1 q2 q3 q5 q6 moved, q4 running', "one $what: the others are moved");
		$holder->end;
		sql('SELECT pg_terminate_backend(' . $_->pid . ')') foreach @users;
		wait_for_job_end($node, $job);
		is(ends($job), 'q1 q2 q3 q4 q5 q6 moved', "one $what: and that one, when it is free");
		($from, $to) = ($to, $from);
	}
	leftovers_ok($node, 'one keeps the others waiting', within => 5);
	($from, $to) = @before;
}

# ---- a cancel that keeps the copies --------------------------------------------------------------
# The next job goes on from each, together.
if ($can_go_on)
{
	my ($job, $holder) = take($query);
	waits_ok($job, 'p2');
	sql("SELECT cancel_move($job, keep => true)");
	wait_for_no_worker($node);
	$holder->end;
	is(sql("SELECT count(*) FROM index_mover.ledger WHERE kind = 'n' AND copied_blocks > 0"), '5', 'kept: the copies of five');
	my ($next, $again, $log) = take($query);
	$again->end;
	wait_for_job_end($node, $next);
	is(sql("SELECT string_agg(name, ' ' ORDER BY name) FROM index_mover_history WHERE job = $next AND kind = 'table' "
		. "AND message ~ 'went on where job $job had ended'"),
		'p2 p3 p4 p5 p7', 'kept: the next job goes on from each');
	unlike(slurp_file($node->logfile, $log), qr/one after the other, and not together/, 'kept: together');
	whole_ok('kept', $all =~ s/p6 //r);
}

# ---- there is no space for all of them -----------------------------------------------------------
SKIP:
{
	my $small = $node->basedir . '/small';
	$node->stop('fast');
	my $problem = start_with_file_system($node, $small, '1200k');
	skip "cannot mount a small file system in a namespace of its own: $problem", 1 if $problem;
	sql("CREATE TABLESPACE regress_small LOCATION '$small'; GRANT CREATE ON TABLESPACE regress_small TO regress_mover");
	$to = 'regress_small';
	my ($job, $holder, $log) = take($query);
	waits_ok($job, 'p2');
	$holder->end;
	wait_for_job_end($node, $job);
	my ($moved, $failed) = ends($job) =~ /^(.*) moved, (.*) failed 53100$/;
	is(join(' ', sort split / /, "$moved $failed"), $all =~ s/p6 //r, 'no space for all: some are moved, the others fail');
	is(moved('regress_small'), $moved, 'no space for all: these are there');
	cmp_ok(scalar(split / /, $moved), '>', 2, "no space for all: $moved");
	is(sql('SELECT count(*), sum(hashtextextended(p::text, 0)) FROM p'), $rows, 'no space for all: the same rows');
	like(slurp_file($node->logfile, $log), qr/one after the other, and not together/, 'no space for all: they are parted');
	leftovers_ok($node, 'no space for all', within => 5);
	files_ok($node, 'no space for all');
}
done_testing();
