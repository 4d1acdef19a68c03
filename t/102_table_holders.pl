# What is in the way of a table's swap, and what it costs: an open GRANT, which
# changes the table's pg_class row without a lock on the table, a reader of
# pg_dump's kind, and COPY, which is none; who holds its TOAST table alone, DDL on any of them,
# and whatever ends a move half-way.  In no case is the copy thrown away without need,
# and in none is a table apart from its TOAST table.
#
# Fault (tables): in the way of the swap: an open GRANT, pg_dump; COPY .. TO and LOCK TABLE, behind which it queues
# Fault (tables): queries before a bid, and behind it, a parallel worker beside it; two workers that bid, and a bid
#   too late for the window of the last one
# Fault (tables): a locked catalog, and a change of its row, as the default of a partitioned table is set
# Fault (tables): the same of the TOAST table alone: a reader, a prepared transaction, VACUUM,
#   autovacuum; one lock of the three not to be had (also 059)
# Fault (tables): REINDEX, VACUUM FULL, a rewrite, TRUNCATE, DROP of a table, its TOAST table
#   or the index of that, a TOAST table that comes or goes, in mid-copy of each file
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Tables;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $only = $ENV{ONLY} || '.';
my $node = new_node('table_holders', conf => "checkpoint_timeout = 1h\nlog_min_messages = debug1");
my $s = IndexMover::Session->new($node);

sub part { my ($name) = @_; return $only eq '.' || $name =~ /$only/; }

$s->run(<<SQL);
CREATE ROLE regress_reader;
-- without a TOAST table, whose move another process would make
CREATE TABLE held (id int PRIMARY KEY, v int, t char(100));
INSERT INTO held SELECT g, g, repeat('x', 100) FROM generate_series(1, 30000) g;
VACUUM ANALYZE held;
SQL
my $sum = "SELECT count(*), sum(hashtextextended(held::text, 0)) FROM held";
my $rows = $s->run($sum);
my $blocks = $s->run("SELECT pg_relation_size('held') / current_setting('block_size')::int");

sub place { return $s->run(
	"SELECT coalesce((SELECT spcname FROM pg_tablespace t WHERE t.oid = reltablespace), 'default') FROM pg_class WHERE oid = "
		. "'held'::regclass"); }
sub elsewhere { return place() eq 'regress_fast' ? 'regress_slow' : 'regress_fast'; }

sub move
{
	my (%settings) = @_;
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	return "SELECT status, sqlstate, detail FROM move_table('held', '" . elsewhere() . "', settings => '{$json}') WHERE name = 'held'";
}

# The move has ended, and one copy was enough for it.
sub moved_by_one_copy_ok
{
	my ($call, $to, $name, $log) = @_;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved||\n", "$name: moved") or diag $err;
	is(place(), $to, "$name: where it was to be");
	my ($copied, $attempts) = split /\|/,
		$s->run("SELECT blocks_copied, lock_attempts FROM index_mover_history WHERE name = 'held' ORDER BY job DESC LIMIT 1");
	is($copied, $blocks, "$name: each block was copied once ($attempts attempts)");
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away");
	is($s->run($sum), $rows, "$name: the same rows");
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	return $attempts;
}

# ---- a GRANT that is open when the move looks ------------------------------------
# of a session, and prepared, which no process has
if (part('open'))
{
	foreach my $how ('session', 'prepared')
	{
		my $name = "open GRANT, $how";
		my $holder = IndexMover::Session->new($node);
		$holder->run('BEGIN; GRANT SELECT ON held TO regress_reader');
		$holder->run(q{PREPARE TRANSACTION 'granter'}) if $how eq 'prepared';
		my $pid = $how eq 'prepared' ? 0 : $holder->pid;
		my $log = -s $node->logfile;
		my $to = elsewhere();
		my $call = start_call($node, 'mover', move());
		poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE 'waiting%' AND blocked_by "
			. ($pid ? "= '{$pid}'" : 'IS NOT NULL'),
			't', "$name: published");
		note $node->safe_psql('postgres', 'SELECT phase, blocked_by, throttled_by FROM index_mover_progress');
		note $node->safe_psql('postgres', 'SELECT * FROM index_mover_blockers()');
		# it does not wait in the exclusive lock, nor in its queue
		is($s->run($sum), $rows, "$name: readers pass");
		is($s->run("SELECT count(*) FROM pg_locks WHERE relation = 'held'::regclass AND mode = 'AccessExclusiveLock'"), '0',
			"$name: no exclusive lock meanwhile");
		$how eq 'prepared' ? $s->run(q{COMMIT PREPARED 'granter'}) : $holder->run('COMMIT');
		my $attempts = moved_by_one_copy_ok($call, $to, $name, $log);
		is($attempts, 1, "$name: and at the first attempt");
		is($s->run("SELECT has_table_privilege('regress_reader', 'held', 'SELECT')"), 't', "$name: the GRANT holds");
		$s->run('REVOKE ALL ON held FROM regress_reader');
		$holder->end;
	}
}

# ---- one that comes during the last attempt ----------------------------------------
# (that of another session is in vain, and lock_wait is over)
if (part('late'))
{
	my $call = held_at($node, 'swap-asking', move(lock_wait => '100ms', on_blocker => 'fail'));
	my $holder = IndexMover::Session->new($node);
	$holder->run('BEGIN; LOCK TABLE held IN ACCESS SHARE MODE');
	usleep(300_000);
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	like($out,
		qr/^failed\|55P03\|could not get the exclusive lock on table "held" within .*: The lock was held by: process @{[$holder->pid]}/,
		'one that comes during the last attempt is named') or diag $err;
	$holder->end;
}

# ---- one that comes between the look and the lock, or under the lock --------------
# It is looked for again under the lock: only one that comes between that look and the
# update ("swap-row") is waited for, and may commit meanwhile.
if (part('between'))
{
	# from 18 on GRANT takes a lock on the table: there, by hand what it does to the row
	my $grant = $node->pg_version < 18 ? 'GRANT SELECT ON held TO regress_reader' : <<SQL;
UPDATE pg_class SET relacl = coalesce(relacl, acldefault('r', relowner))
  || makeaclitem('regress_reader'::regrole, relowner, 'SELECT', false)
 WHERE oid = 'held'::regclass
SQL
	foreach my $case ((map { [ 'swap-row', $_ ] } 'open', 'commits', 'rolls back', 'has committed'),
		picked { $_->[0] eq 'swap-asking' } 'points at which a GRANT comes',
			map { my $point = $_; map { [ $point, $_ ] } 'open', 'has committed' } 'swap-asking', 'swap-locked', 'swap-copied')
	{
		my ($point, $how) = @$case;
		my $name = "GRANT at $point, $how";
		my $log = -s $node->logfile;
		my $to = elsewhere();
		my $call = held_at($node, $point, move(lock_timeout => $how eq 'open' && $point eq 'swap-row' ? '100ms' : '20s'));
		my $holder = IndexMover::Session->new($node);
		$holder->run("BEGIN; $grant");
		$holder->run('COMMIT') if $how eq 'has committed';
		my $waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND pid = $call->{worker}";
		let_go($call);
		if ($how eq 'open')
		{
			$node->wait_for_log(qr/given the exclusive lock on relation \d+ back after \d+ us: another transaction is in the way/, $log);
			poll_until($node, "SELECT blocked_by = '{@{[$holder->pid]}}' FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't',
				"$name: published then");
			is($s->run($sum), $rows, "$name: and readers pass");
			$holder->run('COMMIT');
		}
		elsif ($how ne 'has committed')
		{
			poll_until($node, $waits, '1', "$name: the move waits for the row");
			$holder->run($how eq 'commits' ? 'COMMIT' : 'ROLLBACK');
		}
		my $attempts = moved_by_one_copy_ok($call, $to, $name, $log);
		cmp_ok($attempts, '<=', 3, "$name: $attempts attempts");
		is($s->run("SELECT has_table_privilege('regress_reader', 'held', 'SELECT')"), $how eq 'rolls back' ? 'f' : 't',
			"$name: what it did is in the catalog");
		$s->run('REVOKE ALL ON held FROM regress_reader');
		$holder->end;
		set_test_point($node, '');
	}
}

# ---- an attempt in vain is told, and is not the end of the copy of an index either --
# Another transaction changes the row in pg_class after the last look at it.
if (part('in vain'))
{
	foreach my $case ([ 'held', 'move_table', "UPDATE pg_class SET reloptions = '{fillfactor=90}' WHERE oid = 'held'::regclass" ],
		[ 'held_pkey', 'move_indexes', "UPDATE pg_class SET reloptions = '{fillfactor=90}' WHERE oid = 'held_pkey'::regclass" ])
	{
		my ($what, $function, $change) = @$case;
		my $name = "$what, its row is changed under the lock";
		my $log = -s $node->logfile;
		my $to = $s->run("SELECT reltablespace = 0 OR reltablespace <> (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast') "
			. "FROM pg_class WHERE relname = '$what'") eq 't'
		  ? 'regress_fast' : 'regress_slow';
		my $call = held_at($node, 'swap-row',
			"SELECT status, sqlstate FROM $function('$what', '$to', settings => '{\"lock_timeout\": \"100ms\"}') WHERE name = '$what'");
		my $holder = IndexMover::Session->new($node);
		my $start = time;
		$holder->run("BEGIN; $change");
		usleep(300_000);
		let_go($call);
		my $held = time - $start;
		$node->wait_for_log(qr/given the exclusive lock on relation \d+ back after \d+ us: another transaction is in the way/, $log);
		poll_until($node, "SELECT blocked_by = '{@{[$holder->pid]}}' FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't',
			"$name: published");
		$holder->run('ROLLBACK');
		$holder->end;
		my ($rc, $out, $err) = finish_call($call);
		is($out, "moved|\n", "$name: moved") or diag $err;
		unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away");
		cmp_ok($s->run("SELECT extract(epoch FROM lock_time) FROM index_mover_history WHERE name = '$what' ORDER BY job DESC LIMIT 1"),
			'>=', 0.3, sprintf('%s: lock_time is that of the longest attempt, at least 0.3 of the %.2f s', $name, $held));
		cmp_ok($s->run("SELECT lock_attempts FROM index_mover_history WHERE name = '$what' ORDER BY job DESC LIMIT 1"), '>', 1,
			"$name: and there were several");
		verdict_ok($node, 'held', $name, max_keys => 20, large => 1);
		files_ok($node, $name);
		leftovers_ok($node, $name, within => 5);
	}
}

# ---- a catalog that is locked, as by VACUUM FULL ------------------------------------
# It makes attempts in vain, and no session waits for it in the exclusive lock: there, what
# the swap reads is locked already.
if (part('catalogs'))
{
	my $attempts = 'SELECT max(lock_attempts) FROM index_mover_progress';
	foreach my $case (picked { $_->[1] =~ /attribute|opclass/ } 'catalogs that are locked',
		map { my $what = $_; map { [ $what, $_ ] } qw(pg_attribute pg_index pg_opclass pg_constraint pg_extension) } 'held', 'held_pkey')
	{
		my ($what, $catalog) = @$case;
		my $name = "$what, $catalog is locked";
		my $function = $what eq 'held' ? 'move_table' : 'move_indexes';
		my $to = $s->run("SELECT reltablespace = 0 OR reltablespace <> (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast') "
			. "FROM pg_class WHERE relname = '$what'") eq 't'
		  ? 'regress_fast' : 'regress_slow';
		my $log = -s $node->logfile;
		my $call = held_at($node, 'swap-ready', "SELECT status, sqlstate FROM $function('$what', '$to') WHERE name = '$what'",
			then => 'swap-locked:wait2');
		my $locker = IndexMover::Session->new($node);
		my $second = IndexMover::Session->new($node);
		$second->run('SELECT pg_advisory_lock(0, 5960)');
		$s->run($attempts) foreach 1, 2;    # what it reads is cached now
		$locker->run("BEGIN; LOCK TABLE $catalog IN ACCESS EXCLUSIVE MODE");
		let_go($call);
		my $deadline = time + 180;
		select(undef, undef, undef, 0.05) while $s->run($attempts) < 2 && time < $deadline;
		cmp_ok($s->run($attempts), '>', 1, "$name: attempts in vain");
		is($s->run("SELECT count(*) FROM pg_locks WHERE relation IN ('held'::regclass, 'held_pkey'::regclass) AND mode = "
			. "'AccessExclusiveLock' AND granted"), '0', "$name: without an exclusive lock");
		$locker->run('ROLLBACK');
		$node->wait_for_log(qr/test point "swap-locked": waiting/, $log);
		my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nBEGIN; LOCK TABLE $catalog IN SHARE MODE NOWAIT");
		like($err, qr/55P03/, "$name: not under the exclusive lock");
		set_test_point($node, '');
		$second->end;
		$locker->end;
		($rc, $out, $err) = finish_call($call);
		is($out, "moved|\n", "$name: moved") or diag $err;
		unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away");
	}
	verdict_ok($node, 'held', 'locked catalogs', max_keys => 20, large => 1);
	leftovers_ok($node, 'locked catalogs', within => 5);
}

# ---- the same of a partitioned table, whose default is set ------------------------------
# It has no file, so its tablespace is in pg_shdepend, too.
if (part('default'))
{
	$s->run('CREATE TABLE parts (i int) PARTITION BY LIST (i)');
	my @to = ('regress_fast', 'regress_slow');
	foreach my $catalog ('pg_shdepend', 'pg_class')
	{
		my $locker = IndexMover::Session->new($node);
		$locker->run("BEGIN; LOCK TABLE $catalog IN SHARE MODE");
		my $call = start_call($node, 'mover', "SELECT status, sqlstate FROM move_table('parts', '$to[0]')");
		poll_until($node, q{SELECT count(*) FILTER (WHERE relation = 'parts'::regclass AND mode = 'AccessExclusiveLock') FROM pg_locks }
			. "HAVING count(*) FILTER (WHERE relation = '$catalog'::regclass AND NOT granted) > 0", '0',
			"default, $catalog is locked: waited for without the exclusive lock");
		is($s->run('SELECT count(*) FROM parts'), '0', "default, $catalog is locked: readers pass");
		$locker->run('COMMIT');
		$locker->end;
		my ($rc, $out, $err) = finish_call($call);
		is($out, "moved|\n", "default, $catalog is locked: moved") or diag $err;
		@to = reverse @to;
	}

	# it fails once the row is changed: the change is undone, and the row says so
	set_test_point($node, 'default-set:error');
	is($s->run("SET client_min_messages = error; SELECT status, sqlstate FROM move_table('parts', '$to[0]')"), 'failed|XX000',
		'default, an error after the change: it has failed');
	set_test_point($node, 'default-set:1:timeout');
	is($s->run("SELECT status, sqlstate FROM move_table('parts', '$to[0]')"), 'moved|',
		'default, lock_timeout runs out after the change: moved');
	set_test_point($node, '');
	@to = reverse @to;

	# the row is changed after the last look at it (from 18 on GRANT takes a lock on the table: by hand, then)
	foreach my $how ('open', 'commits')
	{
		my $call = held_at($node, 'default-row', "SELECT status, sqlstate FROM move_table('parts', '$to[0]', settings => "
			. ($how eq 'open' ? q['{"lock_timeout": "100ms"}')] : q['{"lock_timeout": "20s"}')]));
		my $holder = IndexMover::Session->new($node);
		$holder->run(q{BEGIN; UPDATE pg_class SET relacl = coalesce(relacl, acldefault('r', relowner)) }
			. q{|| makeaclitem('regress_reader'::regrole, relowner, 'SELECT', false) WHERE oid = 'parts'::regclass});
		let_go($call);
		if ($how eq 'open')
		{
			poll_until($node, "SELECT blocked_by = '{@{[$holder->pid]}}' FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't',
				'default, a change of its row: it gives the lock back, and publishes who is in the way');
			is($s->run('SELECT count(*) FROM parts'), '0', 'default, a change of its row: readers pass');
		}
		else
		{
			poll_until($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted "
				. "AND pid = $call->{worker}", '1', 'default, a change of its row: it waits for that');
		}
		$holder->run('COMMIT');
		$holder->end;
		my ($rc, $out, $err) = finish_call($call);
		is($out, "moved|\n", "default, a change of its row, $how: moved") or diag $err;
		set_test_point($node, '');
		is($s->run(q{SELECT has_table_privilege('regress_reader', 'parts', 'SELECT')}), 't',
			"default, $how: what it did is in the catalog");
		$s->run('REVOKE ALL ON parts FROM regress_reader');
		@to = reverse @to;
	}
	$s->run('DROP TABLE parts');
}

# ---- others who ask with NOWAIT, as a parallel pg_dump -------------------------------
# Its first process has the table; the others would fail if we stood in a queue.
if (part('nowait'))
{
	my $nowait = sub {
		my ($rc, $out, $err) = $node->psql('postgres', 'BEGIN; LOCK TABLE held IN ACCESS SHARE MODE NOWAIT');
		return $rc == 0 ? 0 : 1;
	};
	my $call = held_at($node, 'swap-asking', move(lock_timeout => '20s'));
	my $leader = IndexMover::Session->new($node);
	$leader->run(q{SET application_name = 'pg_dump'});
	$leader->run('BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE held IN ACCESS SHARE MODE');
	let_go($call);
	my ($failed, $asked) = (0, 0);
	my $published = "SELECT count(*) FROM index_mover_progress WHERE blocked_by = '{@{[$leader->pid]}}'";
	do { $failed += $nowait->(); $asked++; } until ($s->run($published) eq '1' || $asked >= 500);
	is($failed, 0, "a reader that came after the look: $asked others got the table, too");
	$leader->run('COMMIT');
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved||\n", 'and then it is moved') or diag $err;
	$leader->end;

	# one such reader after the other, without a gap
	my @readers = map { IndexMover::Session->new($node) } 1, 2;
	$_->run(q{SET application_name = 'pg_dump'}) foreach @readers;
	my $read = 'BEGIN; LOCK TABLE held IN ACCESS SHARE MODE';
	$readers[0]->run($read);
	my $begun = time;
	$call = start_call($node, 'mover', move(lock_timeout => '20s'));
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", '1', 'ready');
	($failed, $asked) = (0, 0);
	# (the name alone counts for three seconds)
	foreach my $n (1 .. 20)
	{
		$readers[ $n % 2 ]->run($read);
		$readers[ ($n + 1) % 2 ]->run('COMMIT');
		my $is_late = $nowait->();
		last if time - $begun > 3;
		$failed += $is_late;
		$asked++;
	}
	cmp_ok($asked, '>', 0, 'one pg_dump after the other: others have asked');
	is($failed, 0, "one pg_dump after the other: $asked others got it, too");
	is($s->run('SELECT count(*) FROM index_mover_progress'), '1', 'and the move waits');
	# but sessions of that name do not keep the table in place
	my $is_queued = q{SELECT count(*) FROM pg_locks WHERE relation = 'held'::regclass AND mode = 'AccessExclusiveLock'};
	my $n = 0;
	$begun = time;
	until ($s->run($is_queued) > 0 || time - $begun > 60)
	{
		$n++;
		$_->run('ROLLBACK; BEGIN; LOCK TABLE held IN ACCESS SHARE MODE') foreach @readers;
	}
	cmp_ok(time - $begun, '<=', 60, "each stays for a moment only: after $n of them the move queues");
	# the last ones stay: it leaves the queue long before the end of lock_timeout (a look must have found them, so one bid may follow)
	my $passed = 0;
	$begun = time;
	$passed = $nowait->() ? 0 : $passed + 1 until $passed >= 20 || time - $begun > 15;
	cmp_ok($passed, '>=', 20, 'behind one that stays for a second it does not: 20 others got the table');
	$_->end foreach @readers;
	($rc, $out, $err) = finish_call($call);
	is($out, "moved||\n", 'moved, when there is a gap') or diag $err;
	leftovers_ok($node, 'NOWAIT', within => 5);
}

# ---- those that are no such readers ----------------------------------------------------
# of a table without an index, of which nothing but the lock says who reads all of it
if (part('writers'))
{
	$s->run('CREATE TABLE bare AS SELECT generate_series(1, 1000) AS i');
	my $file = PostgreSQL::Test::Utils::tempdir() . '/bare';
	append_to_file($file, "1\n");
	my $to = 'regress_fast';
	my $queued = q{SELECT count(*) FROM pg_locks WHERE relation = 'bare'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted};
	foreach my $sql ("COPY bare FROM '$file'", q{SELECT 'copy ' FROM bare LIMIT 1}, q{COPY (SELECT * FROM bare) TO '/dev/null'},
		'LOCK TABLE bare IN ACCESS SHARE MODE')
	{
		my $holder = IndexMover::Session->new($node);
		$holder->run("BEGIN; $sql");
		my $call = start_call($node, 'mover',
			"SELECT status FROM move_table('bare', '$to', settings => '{\"lock_timeout\": \"20s\"}') WHERE name = 'bare'");
		poll_until($node, $queued, '1', "$sql: the move queues behind it");
		$holder->run('COMMIT');
		$holder->end;
		my ($rc, $out, $err) = finish_call($call);
		is($out, "moved\n", "$sql: moved") or diag $err;
		$to = $to eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	}
	$s->run('DROP TABLE bare');
	leftovers_ok($node, 'writers', within => 5);
}

# ---- who has waited behind a bid in vain --------------------------------------------------
# Who came before it has not, nor has a parallel worker, which passes; a short query has.  And the
# bids of two workers of a job end together.
if (part('bids'))
{
	my $in_vain = sub { my ($what, $ms, $n) = @_; return qr/queued for the exclusive lock on relation $what for $ms ms in vain, and $n /; };
	my $oid = $s->run(q{SELECT 'held'::regclass::oid});
	my $queued = q{SELECT count(*) FROM pg_locks WHERE relation = 'held'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted};
	my @q = map { IndexMover::Session->new($node) } 1 .. 3;
	$q[0]->run('BEGIN; SELECT 1 FROM held LIMIT 1');
	my $log = -s $node->logfile;
	my $call = held_at($node, 'swap-asking', move(lock_timeout => '2s'));
	$q[1]->run('BEGIN; SELECT 1 FROM held LIMIT 1');
	$q[0]->run('COMMIT');
	let_go($call);
	$node->wait_for_log($in_vain->($oid, 2000, '\d+'), $log);
	like(slurp_file($node->logfile, $log), $in_vain->($oid, 2000, 0), 'a query that came after the look, and before the bid');
	set_test_point($node, '');

	poll_until($node, $queued, '1', 'the next bid');
	my $setting = $node->pg_version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
	$q[1]->send("SET $setting = on; SELECT count(*), pg_sleep(6) FROM held");
	poll_until($node, q{SELECT count(*) FROM pg_locks l JOIN pg_stat_activity USING (pid) WHERE backend_type = 'parallel worker' }
		. q{AND l.relation = 'held'::regclass}, '1', 'a parallel worker beside it');
	$log = -s $node->logfile;
	$node->wait_for_log($in_vain->($oid, '\d+', '\d+'), $log);
	like(slurp_file($node->logfile, $log), $in_vain->($oid, '\d+', 0), 'a parallel worker is its leader');
	$q[1]->answer;

	poll_until($node, $queued, '1', 'another bid');
	$log = -s $node->logfile;
	$q[2]->send('SELECT count(*) FROM held');
	$node->wait_for_log($in_vain->($oid, '\d+', 1), $log);
	pass('a short query that waited, and has ended, is known');
	$q[2]->answer;
	$q[1]->run('COMMIT');
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved||\n", 'bids: moved') or diag $err;

	# one worker queues; the other one may do so later, but not for longer
	$s->run('CREATE SCHEMA windows; CREATE TABLE windows.a (i int); CREATE TABLE windows.b (i int)');
	$q[0]->run('BEGIN; SELECT FROM windows.a');
	$q[1]->run('BEGIN; LOCK TABLE windows.b IN ACCESS SHARE MODE');
	$log = -s $node->logfile;
	my $job = $s->run(q{SELECT max(job) FROM move_schema_tables('windows', 'regress_fast', wait => false, }
		. q[settings => '{"max_workers": 2, "lock_timeout": "3s"}')]);
	poll_until($node, $queued =~ s/held/windows.a/r, '1', 'one worker queues');
	$q[2]->run('BEGIN; SELECT FROM windows.b');
	$q[1]->run('COMMIT');
	$node->wait_for_log($in_vain->('\d+', '(?!3000 )\d+', '\d+'), $log);
	pass('whichever comes second, for the rest of that time');
	$_->end foreach @q;
	wait_for_job_end($node, $job);
	is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'moved', 'both are moved');
	$s->run('DROP SCHEMA windows CASCADE');

	# one that comes too late for the window of the bid before is no attempt in vain: it waits for the next one
	$s->run('CREATE SCHEMA late; CREATE TABLE late.a (i int); CREATE TABLE late.b (i int)');
	set_tests($node, test_point => 'swap-asking:2:wait', test_mutation => 'looks:0,bid-gap:4000');
	my $waits = IndexMover::Session->new($node);
	$waits->run('SELECT pg_advisory_lock(0, 5959)');
	$log = -s $node->logfile;
	$job = $s->run(q{SELECT max(job) FROM move_schema_tables('late', 'regress_fast', wait => false, }
		. q[settings => '{"max_workers": 1, "lock_timeout": "3s", "on_blocker": "fail"}')]);
	$node->wait_for_log(qr/test point "swap-asking": waiting/, $log);
	usleep(2_000_000);
	$waits->end;
	wait_for_job_end($node, $job);
	set_tests($node);
	is($s->run("SELECT string_agg(name || ' ' || status || ' ' || lock_attempts, ', ' ORDER BY name) FROM index_mover_history "
		. "WHERE job = $job"), 'late.a moved 1, late.b moved 1', 'a bid that is late for its window waits for the next one');
	$s->run('DROP SCHEMA late CASCADE');
	leftovers_ok($node, 'bids', within => 5);
}

# ---- those that hold the table itself ----------------------------------------------
# The move keeps up, says who holds, and swaps at once when they let go.
if (part('holders'))
{
	foreach my $case (picked { $_->[0] =~ /reader|writer/ } 'holders of the table',
		[ 'a reader, as pg_dump', 'BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE held IN ACCESS SHARE MODE' ],
		[ 'LOCK TABLE IN SHARE MODE', 'BEGIN; LOCK TABLE held IN SHARE MODE' ],
		[ 'COPY', q{BEGIN; COPY (SELECT * FROM held) TO '/dev/null'} ],
		[ 'a writer', q{BEGIN; UPDATE held SET v = v WHERE id = 1} ])
	{
		my ($name, $sql) = @$case;
		my $holder = IndexMover::Session->new($node);
		$holder->run($sql);
		my $log = -s $node->logfile;
		my $to = elsewhere();
		# a short lock_wait: it says so, and goes on waiting
		my $call = start_call($node, 'mover', move(lock_wait => '100ms'));
		poll_until($node, "SELECT blocked_by = '{@{[$holder->pid]}}' FROM index_mover_progress WHERE phase LIKE 'waiting%'", 't',
			"$name: published");
		is($s->run("SELECT count(*) FROM index_mover_blockers('held', NULL) WHERE holds_back ~ 'swap of a copy' AND pid = " . $holder->pid),
			'1', "$name: in index_mover_blockers()");
		$node->wait_for_log(joined(
			qr/WARNING: .*the copy of table "held" has waited for a lock for 0.1 seconds, and goes on waiting\n.*DETAIL:  The /,
			qr/lock is held by: process @{[$holder->pid]}/), $log);
		is($s->run($sum), $rows, "$name: readers pass meanwhile");
		# what is written meanwhile is copied
		$s->run('UPDATE held SET v = v + 1 WHERE id BETWEEN 20000 AND 20100; UPDATE held SET v = v - 1 WHERE id BETWEEN 20000 AND 20100')
		  unless $name =~ /SHARE MODE/;
		$blocks = $s->run("SELECT pg_relation_size('held') / current_setting('block_size')::int") unless $name =~ /SHARE MODE/;
		$holder->run('COMMIT');
		my ($rc, $out, $err) = finish_call($call);
		is($out, "moved||\n", "$name: moved") or diag $err;
		is(place(), $to, "$name: where it was to be");
		unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away");
		is($s->run($sum), $rows, "$name: the same rows");
		verdict_ok($node, 'held', $name, max_keys => 100, large => 1);
		leftovers_ok($node, $name, within => 5);
		$holder->end;
	}
}

# ---- VACUUM, ANALYZE, and DDL that waits, pass in mid-copy --------------------------
if (part('pass'))
{
	foreach my $case (picked { $_->[0] =~ /^(VACUUM|a column|VACUUM FULL)$/ } 'commands beside a copy', [ 'VACUUM', 'VACUUM held' ],
		[ 'VACUUM FREEZE', 'VACUUM (FREEZE) held' ], [ 'ANALYZE', 'ANALYZE held' ],
		[ 'CREATE INDEX CONCURRENTLY', 'CREATE INDEX CONCURRENTLY held_v ON held (v)' ],
		[ 'a column', 'ALTER TABLE held ADD n int' ], [ 'no column', 'ALTER TABLE held DROP n' ],
		[ 'VACUUM FULL', 'VACUUM FULL held', 1 ],
			[ 'TRUNCATE', 'BEGIN; CREATE TABLE kept AS TABLE held; TRUNCATE held; INSERT INTO held TABLE kept; COMMIT; DROP TABLE kept',
				1 ])
	{
		my ($name, $sql, $again) = @$case;
		my $log = -s $node->logfile;
		my $to = elsewhere();
		# (no session waits for the job: a caller's snapshot is what CREATE INDEX CONCURRENTLY waits for)
		my $call = held_at($node, 'copy-half', "SELECT max(job) FROM move_table('held', '$to', wait => false)");
		my ($rc, $job, $err) = finish_call($call);
		# (as documented: a copy gives way to who waits)
		($rc, my $out, $err) = $node->psql('postgres', 'BEGIN; LOCK TABLE held IN ACCESS EXCLUSIVE MODE NOWAIT');
		like($err, qr/could not obtain lock on relation "held"/, "$name: NOWAIT fails meanwhile");
		my $other = IndexMover::Session->new($node);
		$other->send($sql);
		# what only shares passes at once; what excludes waits for the move to see it
		if ($sql =~ /^(VACUUM|ANALYZE|CREATE)(?! FULL)/) { $other->answer; }
		else { poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid, 't', "$name: waits"); }
		is($other->errors =~ /ERROR/ ? $other->errors : '', '', "$name: passes");
		let_go($call);
		$other->answer unless $sql =~ /^(VACUUM|ANALYZE|CREATE)(?! FULL)/;
		is($other->errors =~ /ERROR/ ? $other->errors : '', '', "$name: no error");
		$other->end;
		$s->run("CALL wait_for_move($job)");
		is($s->run("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "$name: moved");
		is(place(), $to, "$name: where it was to be");
		if ($again) { like(slurp_file($node->logfile, $log), qr/starting the copy of table "held" again, because/,
			"$name: the copy was made again, of the new file"); }
		else { unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away"); }
		is($s->run('SELECT count(*), sum(id) FROM held'), '30000|450015000', "$name: all rows");
		verdict_ok($node, 'held', $name, max_keys => 20, large => 1);
		files_ok($node, $name);
		leftovers_ok($node, $name, within => 5);
	}
}

# ---- our own VACUUM --------------------------------------------------------------------
# It lasts longer than lock_wait, since it waits for a page that COPY has pinned.  The
# table's index, which is copied slowly and then to be swapped, is not given up for that.
if (part('pass'))
{
	$s->run(q{CREATE TABLE kept (id int PRIMARY KEY WITH (fillfactor = 10), t char(300)); INSERT INTO kept SELECT g, 'x' FROM }
		. q{generate_series(1, 10000) g});
	my $copying = IndexMover::Session->new($node);
	my $stop = PostgreSQL::Test::Utils::tempdir() . '/stop';
	append_to_file($stop, '');
	$copying->send("COPY kept TO PROGRAM 'while [ -e $stop ]; do sleep 0.1; done; cat > /dev/null'");
	poll_until($node, q{SELECT count(*) FROM pg_locks WHERE relation = 'kept'::regclass AND granted}, '1', 'COPY stands');
	my $call = start_call($node, 'mover',
		q{SELECT name, status, sqlstate FROM move_table('kept', 'regress_fast', indexes => true, freeze_first => true, settings => }
			. q{'{"lock_wait": "300ms", "on_blocker": "fail", "max_workers": "2", "max_rate": "512kB"}') WHERE name ~ '^kept' ORDER BY }
				. q{name});
	poll_until($node, q{SELECT string_agg(name || ': ' || phase, ', ' ORDER BY name) FROM index_mover_progress},
		'kept: freezing, kept_pkey: waiting for lock to swap', 'an index beside its table');
	sleep 2;
	is($s->run(q{SELECT string_agg(name || ': ' || phase, ', ' ORDER BY name) FROM index_mover_progress}),
		'kept: freezing, kept_pkey: waiting for lock to swap', 'our own VACUUM is waited for longer than lock_wait');
	# of a busy machine the table's swap may need longer
	$s->run(q{SELECT alter_move(max(job), 'max_rate', '0'), alter_move(max(job), 'lock_wait', '1min') FROM index_mover_progress});
	unlink $stop;
	$copying->answer;
	$copying->end;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "kept|moved|\nkept_pkey|moved|\n", 'our own VACUUM: both moved') or diag $err;
	$s->run('DROP TABLE kept');
}

# ---- dropped in mid-copy --------------------------------------------------------------
if (part('pass'))
{
	$s->run('CREATE TABLE gone (k int); INSERT INTO gone SELECT generate_series(1, 10000)');
	my $call = held_at($node, 'copy-half', "SELECT status, sqlstate, detail FROM move_table('gone', 'regress_fast')");
	my $other = IndexMover::Session->new($node);
	$other->send('DROP TABLE gone');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid, 't', 'DROP TABLE waits');
	let_go($call);
	$other->answer;
	is($other->errors, '', 'DROP TABLE: no error');
	$other->end;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "skipped|42704|Table \"gone\" was dropped while it was being moved.\n", 'DROP TABLE: the row says so');
	files_ok($node, 'DROP TABLE');
	leftovers_ok($node, 'DROP TABLE', within => 5);
}

# ---- not in the caller's transaction -----------------------------------------------
# Core's SET TABLESPACE leaves wrong index entries if rows are written after it and the
# transaction is rolled back; here, there is no such transaction.
if (part('block'))
{
	my $where = place();
	my $call = sub { my ($wait) = @_; return "SELECT * FROM move_table('held', '" . elsewhere() . "', wait => $wait)"; };
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nBEGIN;\n" . $call->('true') . ";\nROLLBACK;");
	like($err, qr/ERROR:  25001: /, 'in a transaction block: refused');
	# (the bug: the rows' places are used again, and the index has them twice)
	$node->safe_psql('postgres',
		'BEGIN; ' . $call->('false') . '; INSERT INTO held SELECT g, g FROM generate_series(100001, 100100) g; ROLLBACK');
	wait_for_no_worker($node);
	is(place(), $where, 'with wait => false, rolled back: nothing happens');
	is($s->run('SELECT count(*) FROM index_mover_progress'), '0', 'with wait => false, rolled back: no job');
	$node->safe_psql('postgres',
		'BEGIN; ' . $call->('false') . '; INSERT INTO held SELECT g, g FROM generate_series(100001, 100100) g; COMMIT');
	my $job = $s->run('SELECT max(job) FROM index_mover_jobs');
	$s->run("CALL wait_for_move($job)");
	isnt(place(), $where, 'with wait => false, committed: moved then');
	$s->run('DELETE FROM held WHERE id > 100000');
	verdict_ok($node, 'held', 'in a transaction', max_keys => 100, large => 1);
	files_ok($node, 'in a transaction');
}


# ---- a table, its TOAST table and the index of that --------------------------------
# The TOAST table is the largest, and copied first; then the table, then the index.
my ($toast, $toast_index);
sub make_wide
{
	my (%options) = @_;
	$s->run(<<SQL);
DROP TABLE IF EXISTS wide, wide_kept;
CREATE TABLE wide (id int PRIMARY KEY, v int, filler char(300) DEFAULT 'x', big text)
  WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off) TABLESPACE regress_slow;
ALTER TABLE wide ALTER big SET STORAGE external;
INSERT INTO wide SELECT g, 0, 'f', repeat(md5(g::text), 100) FROM generate_series(1, 1500) g;
CREATE TABLE wide_kept AS SELECT id, md5(big) AS digest FROM wide;
SQL
	($toast, $toast_index) = split /\|/,
		$s->run(q{SELECT reltoastrelid::regclass, i.indexrelid::regclass FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid }
			. q{WHERE c.oid = 'wide'::regclass});
	return;
}

# The call, which does not wait, gives the number of its job.
sub move_wide
{
	my ($to, %settings) = @_;
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	return "SELECT max(job) FROM move_table('wide', '$to', wait => false, settings => '{$json}')";
}

# What holds in the end: the rows of the history are alike, the three are together, each
# value is what it was, unless "rows" says how many there are, and nothing is left.
sub wide_ok
{
	my ($job, $name, $status, $place, %options) = @_;
	$s->run("CALL wait_for_move($job, raise => false)");
	is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ','), count(DISTINCT (started_at, finished_at, lock_time, "
		. "lock_attempts)) FROM index_mover_history WHERE job = $job"),
		"$status|1", "$name: the rows of all are alike");
	is(places_of_table($node, 'wide'), $options{no_toast} ? '' : all_at($place), "$name: where table, TOAST table and its index are");
	is($s->run('SELECT count(*) FROM wide JOIN wide_kept k USING (id) WHERE md5(big) = digest'), '1500', "$name: each value is what it was")
	  unless $options{no_toast} || $options{empty};
	is($s->run(q{SELECT count(*) FROM oracle.verify_heapam('wide', check_toast => true)}), '0', "$name: nothing is damaged");
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	return;
}

my $exclusive = sub { return $s->run(
	"SELECT count(*) FROM pg_locks WHERE relation IN ('wide'::regclass, '$toast'::regclass, '$toast_index'::regclass) AND mode = "
		. "'AccessExclusiveLock' AND granted"); };

# A session holds one of them when the move comes to its swap.
if (part('toast held'))
{
	make_wide();
	foreach my $case (
		[ 'a reader of the table', 'BEGIN; SELECT id FROM wide LIMIT 1', {} ],
		[ 'a reader of the TOAST table', "BEGIN; SELECT count(*) FROM $toast", {} ],
		[ 'a reader of the TOAST table, terminated', "BEGIN; SELECT count(*) FROM $toast", { on_blocker => 'terminate' } ],
		[ 'a reader of the TOAST table, too long', "BEGIN; SELECT count(*) FROM $toast", { on_blocker => 'fail' } ],
		[ 'a reader of the TOAST table, and cancel_move()', "BEGIN; SELECT count(*) FROM $toast", {} ],
		[ 'a reader of the TOAST table, prepared', "BEGIN; SELECT count(*) FROM $toast; PREPARE TRANSACTION 'prep'", {} ],
		[ 'VACUUM of the TOAST table', "SET vacuum_cost_delay = 50; SET vacuum_cost_limit = 1; VACUUM (DISABLE_PAGE_SKIPPING) $toast", {} ])
	{
		my ($name, $sql, $settings) = @$case;
		my ($from) = split / /, places_of_table($node, 'wide');
		my $to = other_place($from);
		my $log = -s $node->logfile;
		my $holder = IndexMover::Session->new($node);
		$name =~ /VACUUM/ ? $holder->send($sql) : $holder->run($sql);
		my $pid = $name =~ /prepared/ ? 0 : $holder->pid;
		poll_until($node, "SELECT count(*) > 0 FROM pg_locks WHERE granted AND pid = $pid AND relation = '$toast'::regclass", 't',
			"$name: it holds") if $name =~ /VACUUM/;
		my $job = $s->run(move_wide($to, lock_wait => '100ms', %$settings));
		if (!$settings->{on_blocker})
		{
			poll_until($node, "SELECT blocked_by = '{$pid}' FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", 't',
				"$name: published");
			my $who = $pid ? "process $pid" : 'prepared transaction "prep"';
			$node->wait_for_log(joined(
				qr/WARNING: .*the copy of table "wide" has waited for a lock for 0.1 seconds, and goes on waiting\n.*DETAIL:  The /,
				qr/lock is held by: $who/), $log);
			is($s->run("SELECT count(*) FROM index_mover_blockers('wide', NULL) WHERE holds_back ~ 'swap of a copy' AND "
				. ($pid ? "pid = $pid" : "name = 'prep'")), '1', "$name: in index_mover_blockers()");
			is($exclusive->(), '0', "$name: no exclusive lock meanwhile");
			# it asks, whoever has it, but for VACUUM
			if ($name =~ /VACUUM/)
			{
				usleep(1_500_000);
				is($s->run('SELECT lock_attempts FROM index_mover_progress'), '0', "$name: the move has not asked for a lock");
			}
			else { poll_until($node, 'SELECT lock_attempts > 0 FROM index_mover_progress', 't', "$name: an attempt"); }
			if ($name =~ /cancel_move/) { is($s->run("SELECT cancel_move($job)"), '1', "$name: canceled"); }
			elsif ($name =~ /VACUUM/) { $s->run("SELECT pg_cancel_backend($pid)"); }
			elsif ($name =~ /prepared/) { $holder->run(q{COMMIT PREPARED 'prep'}); }
			else { $holder->run('COMMIT'); }
		}
		my ($status, $place) = $name =~ /cancel_move/ ? ('canceled 57014', $from) : $name =~ /too long/ ? ('failed 55P03', $from)
			: ('moved', $to);
		poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND kind = 'table'", (split / /, $status)[0],
			"$name: its end");
		# (whoever still holds the TOAST table is in no one's way)
		like($s->run("SELECT message FROM index_mover_history WHERE job = $job AND kind = 'table'"),
			qr/exclusive lock on table "wide" within 0.1 seconds.*process $pid/s, "$name: the row says who") if $name =~ /too long/;
		like($s->run("SELECT message FROM index_mover_history WHERE job = $job AND kind = 'toast'"),
			qr/It has terminated process $pid|terminated process $pid/, "$name: the row says whom") if $name =~ /terminated/;
		wide_ok($job, $name, $status, $place);
		$holder->end;
	}
}

# A process that waits for 10 ms in the queue for a lock says so in the log: the swap never
# queues for a second lock, not even for a short time, while others wait for the first.
sub watch_queue
{
	my ($watch) = @_;
	$s->run($watch ? "ALTER SYSTEM SET $_" : 'ALTER SYSTEM RESET ' . $_ =~ s/ .*//r)
	  foreach 'deadlock_timeout = 10', 'log_lock_waits = on';
	$s->run('SELECT pg_reload_conf()');
	return;
}

sub not_queued_ok
{
	my ($log, $name) = @_;
	# (afterwards it may queue for that alone)
	my ($text) = split /given the exclusive lock on relation \d+ back/, slurp_file($node->logfile, $log);
	my $oids = $s->run("SELECT '$toast'::regclass::oid || '|' || '$toast_index'::regclass::oid");
	unlike($text, qr/still waiting for AccessExclusiveLock on relation (?:$oids) /,
		"$name: it has not queued for that with the table locked");
	return;
}

# The move has got the table, among short transactions without end, when a session takes the
# TOAST table: it gives back the table, and does not wait with that.
if (part('toast taken'))
{
	my $name = 'the TOAST table is taken while the move has the table';
	make_wide();
	watch_queue(1);
	append_to_file($node->basedir . '/short.sql', "\\set id random(1, 1500)\nUPDATE wide SET v = v WHERE id = :id;\n");
	my ($gate, $holder) = map { IndexMover::Session->new($node) } 1, 2;
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	set_test_point($node, 'swap-file-locked:wait');
	my ($in, $out) = ('', '');
	my $load = IPC::Run::start([ 'pgbench', '-n', '-c', 8, '-T', 3600, '-f', $node->basedir . '/short.sql', $node->connstr('postgres') ],
		'<', \$in, '>', \$out, '2>&1');
	poll_until($node, "SELECT count(*) > 2 FROM pg_locks WHERE relation = 'wide'::regclass AND mode = 'RowExclusiveLock'", 't',
		"$name: load");
	my $log = -s $node->logfile;
	my $job = $s->run(move_wide('regress_fast', lock_timeout => '60s'));
	$node->wait_for_log(qr/test point "swap-file-locked": waiting/, $log);
	$holder->run("BEGIN; SELECT count(*) FROM $toast");
	my $start = time;
	$gate->end;
	$node->wait_for_log(qr/given the exclusive lock on relation \d+ back after \d+ us: another transaction is in the way/, $log);
	soon_ok(time - $start, 3, "$name: it gives the table back soon");
	not_queued_ok($log, $name);
	watch_queue(0);
	poll_until($node, "SELECT blocked_by = '{@{[$holder->pid]}}' FROM index_mover_progress", 't', "$name: published then");
	$load->signal('TERM');
	eval { $load->finish };
	$holder->run('COMMIT');
	set_test_point($node, '');
	wide_ok($job, $name, 'moved', 'regress_fast');
	$holder->end;
}

# The caller's own transaction holds a TOAST table alone: that is one table, not two.
if (part('toast own'))
{
	my $of = $s->run(<<SQL);
CREATE SCHEMA two CREATE TABLE a (t text) CREATE TABLE b (t text);
SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'two.a'::regclass
SQL
	my $told = "SELECT string_agg(concat_ws(' ', name, status, sqlstate), ', ' ORDER BY name) FROM (SELECT count(*) FROM $of) held";
	is($s->run("$told, move_schema_tables('two', 'regress_fast') WHERE kind = 'table'"), 'two.a skipped 55006, two.b moved',
		'own TOAST table held: the others move');
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$told, move_table('two.a', 'regress_fast')");
	like($err, qr/ERROR:  55006: cannot move .* because the current transaction holds a lock/, 'own TOAST table held: refused alone');
	$s->run('DROP SCHEMA two CASCADE');
}

# Only some of the three are copied, as an older version has left them apart, and there is
# a wait between the copies and the swap.
if (part('toast apart'))
{
	make_wide() unless $toast && places_of_table($node, 'wide') ne '';
	my ($far, $near) = ('regress_fast', 'regress_slow');
	foreach my $apart ([ $far, $near, $near ], [ $far, $far, $near ], [ $near, $far, $far ])
	{
		foreach my $what ('a reader', 'swap_after', 'DDL')
		{
			my $name = "$what, from @$apart";
			$s->run("CALL oracle.mix('wide', '" . join("', '", @$apart) . "')");
			# (mix() leaves them empty)
			$s->run("INSERT INTO wide SELECT g, 0, 'f', repeat(md5(g::text), 100) FROM generate_series(1, 1500) g");
			my $holder = IndexMover::Session->new($node);
			my $log = -s $node->logfile;
			$holder->run("BEGIN; SELECT count(big) FROM wide; SELECT count(chunk_data) FROM $toast WHERE chunk_id > 0")
				if $what eq 'a reader';
			my $job = $s->run(move_wide($far, lock_wait => '100ms', $what eq 'a reader' ? () : (swap_after => 'infinity')));
			if ($what eq 'a reader')
			{
				# many looks
				$node->wait_for_log(qr/has waited for a lock for 0.1 seconds, and goes on waiting/, $log);
				sleep 1;
				$holder->run('COMMIT');
			}
			else
			{
				poll_until($node, 'SELECT count(*) FROM index_mover_progress WHERE phase = $$waiting for time to swap$$', 1,
					"$name: it waits");
				if ($what eq 'DDL') { $s->run('ALTER TABLE wide SET (fillfactor = 90)'); sleep 1; }
				$s->run("SELECT alter_move($job, 'swap_after', '')");
			}
			wide_ok($job, $name, 'moved', $far);
			$holder->end;
		}
	}
}

# One of the locks is not to be had, or there is too much to do under them: all are given
# back at once.
if (part('toast back'))
{
	make_wide() unless $toast && places_of_table($node, 'wide') ne '';
	watch_queue(1);
	foreach my $case ([ 'the TOAST table is held', qr/another transaction is in the way/, {} ],
		[ 'too much left', qr/too much left to do/, { max_lock_time => '1ms' } ],
		[ 'its map takes long', qr/too much left to do/, { max_lock_time => '50ms' } ])
	{
		my ($name, $why, $settings) = @$case;
		my ($from) = split / /, places_of_table($node, 'wide');
		my $to = other_place($from);
		my $log = -s $node->logfile;
		my $points = 'swap-given-back:wait2' . ($name =~ /map/ && ',swap-map:sleep');
		my $call = held_at($node, 'swap-asking', move_wide($to, %$settings), then => $points);
		my ($rc, $job, $err) = finish_call($call);
		set_tests($node, test_point => $points, test_mutation => $name =~ /map/ ? '' : 'slow-blocks');
		my $back = IndexMover::Session->new($node);
		$back->run('SELECT pg_advisory_lock(0, 5960)');
		my $holder = IndexMover::Session->new($node);
		if ($name =~ /held/) { $holder->run("BEGIN; SELECT count(*) FROM $toast"); }
		elsif ($name =~ /left/) { $s->run('UPDATE wide SET v = v + 1, big = repeat(md5(id::text), 100)'); }
		let_go($call);
		$node->wait_for_log(qr/test point "swap-given-back": waiting/, $log);
		is($exclusive->(), '0', "$name: no exclusive lock is left");
		is($s->run('SET lock_timeout = 1; SELECT count(big) FROM wide; RESET lock_timeout'), '1500', "$name: readers pass");
		$holder->run('COMMIT') if $name =~ /held/;
		$back->end;
		$node->wait_for_log(qr/given the exclusive lock on relation \d+ back after \d+ us: $why/, $log);
		set_tests($node);
		$s->run("SELECT alter_move($job, 'max_lock_time', '10s')") if $name =~ /map/;
		wide_ok($job, $name, 'moved', $to);
		cmp_ok($s->run("SELECT min(lock_attempts) FROM index_mover_history WHERE job = $job"), '>=', 2, "$name: there was another attempt");
		unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away");
		not_queued_ok($log, $name);
		$holder->end;
	}
	# so many pages that to compare them takes longer than that: they do not keep the move from its end
	$s->run('VACUUM wide');
	set_tests($node, test_point => 'swap-map:sleep', test_mutation => 'slow-map:200000');
	my $to = other_place((split / /, places_of_table($node, 'wide'))[0]);
	my $job = $s->run(move_wide($to, lock_wait => '5s', on_blocker => 'fail'));
	wide_ok($job, 'its map is large', 'moved', $to);
	set_tests($node);
	watch_queue(0);
}

# A session has locked the ledger when the next file is to be made, or the swap to be prepared:
# DDL of the table does not wait for that.
if (part('toast ledger'))
{
	make_wide() unless $toast && places_of_table($node, 'wide') ne '';
	foreach my $point ('copy-half', 'copy-synced:3')
	{
		my $name = "the ledger is locked at $point";
		my ($from) = split / /, places_of_table($node, 'wide');
		my $to = other_place($from);
		my $log = -s $node->logfile;
		my $call = held_at($node, $point, move_wide($to));
		my ($rc, $job, $err) = finish_call($call);
		my $locker = IndexMover::Session->new($node);
		$locker->run('BEGIN; LOCK TABLE index_mover.ledger');
		let_go($call);
		poll_until($node, "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'index_mover.ledger'::regclass AND NOT granted", 't', $name);
		is($s->run("SET lock_timeout = '10s'; ALTER TABLE wide ALTER v SET DEFAULT 0; RESET lock_timeout; SELECT 1"), '1',
			"$name: DDL passes");
		$locker->end;
		wide_ok($job, $name, 'moved', $to);
		unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: no copy was thrown away");
	}
}

# Commands that replace, drop or make one of the three, in the middle of the first file, of
# the last one, and behind all: the move lets them pass, and moves what is there then.  (From
# 17 on, a lock that is asked for without waiting is granted before a waiting one that stands
# behind a lock of the same process: a move that is ready comes first.)
if (part('toast ddl'))
{
	foreach my $case (
		picked { $_->[0] =~ /copy-half 1|copy-half 3/ && $_->[1] =~ /^(?:VACUUM FULL wide|REINDEX INDEX C|no TOAST|new TOAST|DROP)/
			|| $_->[0] eq 'copy-synced 3' && $_->[1] eq 'REINDEX INDEX' } 'commands beside a copy, and when',
		map { my $point = $_; map { [ $point, @$_ ] }
			[ 'VACUUM FULL wide', 'VACUUM FULL wide' ], [ 'CLUSTER', 'CLUSTER wide USING wide_pkey' ],
			[ 'TRUNCATE', 'TRUNCATE wide' ], [ 'VACUUM FULL of TOAST', 'VACUUM FULL %s' ],
				[ 'rewrite', 'ALTER TABLE wide ALTER v TYPE bigint' ],
			[ 'REINDEX INDEX', 'REINDEX INDEX %2$s' ], [ 'REINDEX TABLE', 'REINDEX TABLE %s' ],
			[ 'REINDEX INDEX CONCURRENTLY', 'REINDEX INDEX CONCURRENTLY %2$s' ],
				[ 'REINDEX TABLE CONCURRENTLY', 'REINDEX TABLE CONCURRENTLY %s' ],
			[ 'no TOAST', 'VACUUM FULL wide' ], [ 'new TOAST', 'ALTER TABLE wide ADD big text' ],
			[ 'DROP TABLE', 'DROP TABLE wide' ], [ 'SET TABLESPACE', 'ALTER TABLE wide SET TABLESPACE pg_default' ]
		} 'copy-half 1', 'copy-half 3', 'copy-synced 3', $node->pg_version < 17 ? 'swap-ready 1' : ())
	{
		my ($point, $what, $command) = @$case;
		my $name = "$what at $point";
		make_wide();
		my ($at, $n) = split / /, $point;
		$s->run('ALTER TABLE wide DROP big, DROP filler') if $what =~ /TOAST$/ && $what !~ / of /;
		if ($what eq 'new TOAST')
		{
			$s->run('VACUUM FULL wide');
			$n = 1;
		}
		my $log = -s $node->logfile;
		my $call = held_at($node, $n == 1 ? $at : "$at:$n", move_wide('regress_fast'));
		my ($rc, $job, $err) = finish_call($call);
		my $other = IndexMover::Session->new($node);
		$other->send(sprintf $command, $toast, $toast_index);
		poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid, 't', "$name: waits");
		let_go($call);
		$other->answer;
		is($other->errors =~ /ERROR/ ? $other->errors : '', '', "$name: passes");
		$other->end;
		if ($what eq 'DROP TABLE')
		{
			$s->run("CALL wait_for_move($job, raise => false)");
			is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ',') FROM index_mover_history WHERE job = $job"),
				'skipped 42704', "$name: the rows say so");
			files_ok($node, $name);
			leftovers_ok($node, $name, within => 5);
			next;
		}
		wide_ok($job, $name, 'moved', 'regress_fast', no_toast => $what eq 'no TOAST', empty => $what =~ /TRUNCATE|new TOAST/);
		is($s->run(q{SELECT spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'wide'::regclass}),
			'regress_fast', "$name: where the table is");
		like(slurp_file($node->logfile, $log), qr/starting the copy of table "wide" again, because its (?:TOAST table|file) was/,
			"$name: the copy was made again");
	}
}

# What steers a move steers it as a whole.
if (part('toast steered'))
{
	make_wide();
	# paused and resumed in the second file
	my $call = held_at($node, 'copy-half:2', move_wide('regress_fast'));
	my ($rc, $job) = finish_call($call);
	chomp $job;
	$s->run("SELECT pause_move($job)");
	let_go($call);
	poll_until($node, q{SELECT throttled_by FROM index_mover_progress}, 'pause_move()', 'paused in the second file');
	is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'paused',
		'paused: the rows are alike');
	is(places_of_table($node, 'wide'), all_at('regress_slow'), 'paused: nothing has moved');
	$s->run("SELECT resume_move($job)");
	wide_ok($job, 'resumed', 'moved', 'regress_fast');
	# canceled there
	$call = held_at($node, 'copy-half:2', move_wide('regress_slow'));
	(undef, $job) = finish_call($call);
	$s->run("SELECT cancel_move($job)");
	let_go($call);
	wide_ok($job, 'canceled in the second file', 'canceled 57014', 'regress_fast');
	# ready, and not yet time; resume_move() says that it is
	$job = $s->run(move_wide('regress_slow', swap_after => '2100-01-01'));
	poll_until($node, q{SELECT phase FROM index_mover_progress}, 'waiting for time to swap', 'swap_after');
	$s->run("UPDATE wide SET big = repeat(md5(id::text), 100) WHERE id % 3 = 0");
	is(places_of_table($node, 'wide'), all_at('regress_fast'), 'swap_after: nothing has moved');
	$s->run("SELECT resume_move($job)");
	wide_ok($job, 'swap_after', 'moved', 'regress_slow');
	# a rehearsal, with a reader in the way
	my $holder = IndexMover::Session->new($node);
	$holder->run("BEGIN; SELECT count(*) FROM $toast");
	$job = $s->run("SELECT max(job) FROM move_table('wide', 'regress_fast', wait => false, rehearse => true)");
	wide_ok($job, 'rehearsal', 'rehearsed', 'regress_slow');
	like($s->run("SELECT string_agg(message, ' ') FROM index_mover_history WHERE job = $job AND kind = 'toast'"),
		qr/Copied .*In the way of the swap would have been: process @{[$holder->pid]}/,
			'rehearsal: the row says who would have been in the way');
	$holder->end;
	# its files are removed piece by piece, without locks on the table
	$call = held_at($node, 'old-file-drop', "SELECT status FROM move_table('wide', 'regress_fast', rehearse => true) LIMIT 1");
	is($s->run('BEGIN; LOCK TABLE wide NOWAIT'), '', 'rehearsal: the table is free while the copy is removed');
	$s->run('ROLLBACK');
	let_go($call);
	is((finish_call($call))[1], "rehearsed\n", 'rehearsal: it ends');
	# a cancel meanwhile comes too late
	$call = held_at($node, 'old-file-drop', "SELECT status FROM move_table('wide', 'regress_fast', rehearse => true) LIMIT 1");
	is($s->run('SELECT cancel_move()'), '1', 'rehearsal: is canceled while the copy is removed');
	my @result = finish_call($call);
	let_go($call);
	is($result[1], "rehearsed\n", 'rehearsal: it has ended all the same');
	like($result[2], qr/NOTICE:  57014: could not remove the new file of table "wide" piece by piece/, 'rehearsal: a NOTICE');
	set_test_point($node, '');
	wait_for_no_worker($node);
	leftovers_ok($node, 'rehearsal canceled late');
	# a rehearsal that begins again in its last file
	my $log = -s $node->logfile;
	$call = held_at($node, 'copy-half:3', "SELECT max(job) FROM move_table('wide', 'regress_fast', wait => false, rehearse => true)");
	(undef, $job) = finish_call($call);
	my $other = IndexMover::Session->new($node);
	$other->send('VACUUM FULL wide');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid, 't', 'rehearsal again: DDL waits');
	let_go($call);
	$other->answer;
	$other->end;
	wide_ok($job, 'rehearsal again', 'rehearsed', 'regress_slow');
	like(slurp_file($node->logfile, $log), qr/starting the copy of table "wide" again, because/, 'rehearsal again: of all files');
	# a second index of the TOAST table, of a REINDEX that was canceled
	my $index = $s->run("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = '$toast'::regclass");
	my $reader = IndexMover::Session->new($node);
	$reader->run("BEGIN; SELECT count(*) FROM $toast");
	$s->run("SET statement_timeout = '1s'");
	$s->send("REINDEX INDEX CONCURRENTLY $index");
	$s->answer;
	$s->run('RESET statement_timeout');
	$reader->end;
	is($s->run("SELECT count(*) FROM pg_index WHERE indrelid = '$toast'::regclass"), '2', 'two TOAST indexes');
	$job = $s->run(move_wide('regress_fast'));
	$s->run("CALL wait_for_move($job)");
	is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'moved', 'two TOAST indexes: moved');
	is($s->run("SELECT count(DISTINCT reltablespace) FROM pg_class WHERE oid IN ('wide'::regclass, '$toast'::regclass) OR oid IN "
		. "(SELECT indexrelid FROM pg_index WHERE indrelid = '$toast'::regclass)"), '1', 'two TOAST indexes: all of them');
	$s->run('DROP TABLE wide');
	leftovers_ok($node, 'two TOAST indexes');
}

# Many tables, some with a TOAST table, by two workers beside writers.
if (part('toast many'))
{
	$s->run('CREATE SCHEMA many');
	$s->run("CREATE TABLE many.t$_ (id int PRIMARY KEY, v int, " . ($_ % 3 ? 'big text' : 'n int')
		. ") TABLESPACE regress_slow; INSERT INTO many.t$_ SELECT g, 0, "
		. ($_ % 3 ? q{(SELECT string_agg(md5((g + h)::text), '') FROM generate_series(1, 150) h)} : 'g')
			. ' FROM generate_series(1, 200) g') foreach 1 .. 12;
	my $writer = IndexMover::Session->new($node);
	$writer->send(q{DO $$ BEGIN FOR i IN 1 .. 3000 LOOP EXECUTE format('UPDATE many.t%s SET v = v + 1 WHERE id = %s', i % 12 + 1, i % }
		. q{200 + 1); COMMIT; END LOOP; END $$});
	foreach my $to ('regress_fast', 'regress_slow')
	{
		my $job = $s->run("SELECT max(job) FROM move_schema_tables('many', '$to', indexes => true, wait => false, settings => "
			. "'{\"max_workers\": 2}')");
		$s->run("CALL wait_for_move($job, raise => false)");
		is($s->run("SELECT kind, status, count(*) FROM index_mover_history WHERE job = $job GROUP BY 1, 2 ORDER BY 1"),
			"index|moved|12\ntable|moved|12\ntoast|moved|8\ntoast index|moved|8", "two workers, to $to: all moved");
	}
	# the time is over between two tables, never within one
	my $job = $s->run(q{SELECT max(job) FROM move_schema_tables('many', 'regress_fast', wait => false, settings => }
		. q{'{"max_workers": 1, "max_duration": "1s", "max_rate": "1MB"}')});
	$s->run("CALL wait_for_move($job, raise => false)");
	is($s->run("SELECT string_agg(DISTINCT status, ',' ORDER BY status) FROM index_mover_history WHERE job = $job"), 'moved,skipped',
		'max_duration: some were not moved');
	is($s->run(<<SQL), '0', 'max_duration: the rows of each are alike');
SELECT count(*)
  FROM index_mover.move_log p
 CROSS JOIN LATERAL (SELECT * FROM index_mover.move_log t WHERE t.job = p.job AND t.item < p.item AND t.kind = 'table'
   ORDER BY t.item DESC LIMIT 1) t
 WHERE p.job = $job AND p.kind <> 'table' AND (p.status, p.started_at, p.finished_at, p.lock_time) IS DISTINCT
   FROM (t.status, t.started_at, t.finished_at, t.lock_time)
SQL
	$writer->answer;
	is($writer->errors, '', 'two workers: the writer had no error');
	$writer->end;
	is($s->run("SELECT count(*) FROM pg_class c, LATERAL oracle.verify_heapam(c.oid, check_toast => true) WHERE relnamespace = "
		. "'many'::regnamespace AND relkind = 'r'"), '0', 'two workers: nothing is damaged');
	files_ok($node, 'two workers');
	leftovers_ok($node, 'two workers', within => 5);
}

# A copy that waits, here for the time of its swap, catches up less and less often: a block that
# keeps changing is logged each time.
if (part('less often'))
{
	$s->run("CREATE TABLE often WITH (fillfactor = 10) AS SELECT g AS v, repeat('x', 100) AS t FROM generate_series(1, 1000) g");
	my $pages = $s->run("SELECT pg_relation_size('often') / current_setting('block_size')::int");
	set_tests($node, test_mutation => 'wait-part:2');
	my $job = $s->run("SELECT max(job) FROM move_table('often', 'regress_fast', wait => false, "
		. "settings => '{\"swap_after\": \"infinity\"}')");
	poll_until($node, 'SELECT phase FROM index_mover_progress', 'waiting for time to swap', 'a copy that waits for its time');
	# the WAL of another segment is read soon
	for (1 .. 16) { $s->run('UPDATE often SET v = v; SELECT pg_switch_wal()'); sleep 1; }
	$s->run("SELECT cancel_move($job)");
	wait_for_job_end($node, $job);
	set_tests($node);
	my $again = $s->run("SELECT blocks_recopied FROM index_mover_history WHERE job = $job AND kind = 'table'");
	cmp_ok($again, '<', 8 * $pages, "in 16 seconds, $again times one of $pages blocks is copied again");

	# where many have changed, it stays near: the next holder may come soon after this one
	set_tests($node, test_mutation => 'wait-part:1,near:50');
	my $holder = IndexMover::Session->new($node);
	$holder->run('BEGIN; LOCK TABLE often IN ACCESS SHARE MODE');
	$job = $s->run("SELECT max(job) FROM move_table('often', 'regress_fast', wait => false)");
	poll_until($node, "SELECT phase FROM index_mover_progress WHERE blocked_by <> '{}'", 'waiting for lock to swap',
		'a copy that waits for its lock');
	for (1 .. 28) { $s->run('UPDATE often SET v = v'); usleep(500_000); }
	$s->run("SELECT cancel_move($job)");
	wait_for_job_end($node, $job);
	set_tests($node);
	$holder->end;
	$again = $s->run("SELECT blocks_recopied FROM index_mover_history WHERE job = $job AND kind = 'table'");
	cmp_ok($again, '>', 7 * $pages, "in 14 seconds, $again times one of $pages blocks is copied again while a holder stays");
}

$s->end;
done_testing();
