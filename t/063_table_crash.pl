# A move of a table that is killed, fails, is canceled or terminated at every step: each
# of table, TOAST table and its index is where it was or where it was to be, whole, its
# visibility map too, here and on a standby; what is left is on record and goes; what
# has not moved is moved by resume_move(), and what has goes back with undo_move().
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Shutdown;
use IndexMover::Storage;
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
my $library = preload_library('io_faults');

my $node = do
{
	local $ENV{LD_PRELOAD} = $library;
	new_node('table_crash', streaming => 1, extra => ['--data-checksums'], conf => <<CONF);
checkpoint_timeout = 1h
max_wal_size = 4GB
wal_keep_size = 1GB
wal_retrieve_retry_interval = 100ms
CONF
};
make_table($node, 'heap', 1200);
# of this, the old file is removed in more than one step
make_table($node, 'large', 10500) if faults();
$node->safe_psql('postgres', "LOAD 'index_mover'");

$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
$standby->start;

my @before_swap = qw(copy-registered copy-created copy-logged copy-first copy-half copy-end copy-round
  copy-before-sync copy-synced copy-again copy-verifying copy-buffered-round swap-asking swap-locked swap-block swap-copied swap-row swap-before-commit);
my @after_swap = qw(swapped prewarm-step prewarmed old-file-start old-file-drop old-file-dropped);
my %class = map { $_ => 1 } qw(copy-registered copy-created copy-half copy-synced swap-before-commit swapped old-file-drop);
# what is done after another end than a kill is that of an index, at each class of t/021
my %few = map { $_ => 1 } qw(copy-half swap-before-commit swapped);
my %written = ('copy-round' => 'copy-end', 'copy-buffered-round' => 'copy-synced');
# the order in which the parts are moved
my %order = (heap => 'name', toast => 'smallest');
my $changes = 0;

sub change { change_table($node, $_[0] || 'heap', ++$changes); return; }

# What must hold after a fault, whatever it was.
sub check_all
{
	my ($name, $expected, %options) = @_;
	my $table = $options{table} || 'heap';
	is(places_of_table($node, $table), $expected, "$name: where table, TOAST table and its index are");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	files_ok($node, $name);
	# the ledger, too
	leftovers_ok($node, $name, within => 5);
	table_ok($node, $table, $name);
	return unless faults() || $options{standby};
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	files_ok($standby, "$name, standby");
	return;
}

sub job { return $node->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history'); }

# Move the rest, or move back what has moved.
sub go_on
{
	my ($name, $how, $job, $expected, %options) = @_;
	my $new = $node->safe_psql('postgres', "SELECT ${how}_move($job)");
	$node->psql('postgres', "CALL wait_for_move($new)") if $new;
	wait_for_no_worker($node);
	is(places_of_table($node, $options{table} || 'heap'), $expected, "$name: ${how}_move()");
	return;
}

sub all_at { return join ' ', ($_[0]) x 3; }

my $kind;
sub fault_at
{
	my ($action, $point, %options) = @_;
	my $table = $options{table} || 'heap';
	my $part = $options{part} || 'heap';
	my $name = "$action at $point" . ($part eq 'heap' ? '' : " of the TOAST table") . ($table eq 'heap' ? '' : ", $table");
	my ($from) = split / /, places_of_table($node, $table);
	my $to = other_place($from);
	my $swapped = grep { $_ eq $point } @after_swap, 'old-file-step';
	my $waits = $action eq 'terminate' || $action eq 'cancel';
	my $move = "FROM move_table('$table', '$to', settings => '{\"order\": \"$order{$part}\", \"max_workers\": 1}')";

	# the index of the TOAST table moves first, and alone
	$node->safe_psql('postgres', "SELECT status FROM move_indexes((SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$table'::regclass), '$to', method => 'copy')")
	  if $part eq 'toast';
	my @parts = $part eq 'toast' ? ($from, $swapped ? $to : $from, $to) : ($swapped ? $to : $from, $from, $from);

	change($table);
	set_tests($node, test_point => "$point:" . ($waits ? 'wait' : $action), test_mutation => $point eq 'copy-again' ? 'again' : '');
	my $gate;
	if ($waits)
	{
		$gate = IndexMover::Session->new($node);
		$gate->run('SELECT pg_advisory_lock(0, ' . ($written{$point} ? 5960 : 5959) . ')');
	}
	my $log = -s $node->logfile;
	my $sql = "SELECT string_agg(status || ' ' || coalesce(sqlstate, '-'), ',') FILTER (WHERE status <> 'skipped') $move";
	my $call;
	if ($written{$point})
	{
		$call = held_at($node, $written{$point}, $sql, then => "$point:" . ($waits ? 'wait2' : $action));
		# a round copies no fewer than 256 blocks
		$node->safe_psql('postgres', "UPDATE $_ SET v = v WHERE id % 2 = 0") foreach $table, "${table}_twin";
		change($table);
		let_go($call);
	}
	else
	{
		$call = start_call($node, 'mover', $sql);
	}
	if ($waits)
	{
		$node->wait_for_log(qr/test point "$point": waiting/, $log);
		$node->safe_psql('postgres', "SELECT pg_${action}_backend(pid) FROM pg_stat_activity WHERE backend_type = 'index_mover'");
		# behind that, the other parts are moved
		$node->wait_for_log(qr/(?:did not move|moved) (?:table|TOAST table) |terminating background worker/, $log);
		$gate->end;
	}
	my ($rc, $out, $err) = finish_call($call);
	wait_until_up($node) if $action eq 'kill';
	ok($node->log_contains(qr/test point "$point"/, $log), "$name: it came there");
	set_tests($node);
	my $job = job();
	wait_for_no_worker($node);
	if ($action eq 'kill')
	{
		is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $point eq 'old-file-dropped' ? 0 : 1,
			"$name: what is left is on record");
		is($rc == 0 ? $out : '', '', "$name: the caller loses its connection");
	}
	else
	{
		my %row = (error => 'failed XX000', cancel => 'canceled 57014', terminate => 'canceled 57P01');
		my $first = (split /,/, $out)[0] // '';
		chomp $first;
		if ($swapped) { like($first, qr/^moved/, "$name: the row") or diag $err }
		else { like($out, qr/\Q$row{$action}/, "$name: the row") or diag $err }
		# the others go on after an error
		@parts = split / /, places_of_table($node, $table);
		is($parts[$part eq 'toast' ? 1 : 0], $swapped ? $to : $from, "$name: where it is");
	}
	check_all($name, "@parts", table => $table, standby => $action eq 'kill' && $class{$point});
	count_fault("copy of a table, worker: $action");
	# (of the index that was moved alone, undo_move() of this job knows nothing)
	if ($part eq 'heap' && $changes % 2) { go_on($name, 'undo', $job, all_at($from), table => $table) }
	else { go_on($name, 'resume', $job, all_at($to), table => $table) }
	table_ok($node, $table, "$name, then") if faults() || $class{$point};
	return;
}

my $only = $ENV{ONLY} || '.';
foreach my $action (grep { "worker $_" =~ /$only/ } qw(kill error terminate cancel))
{
	fault_at($action, $_) foreach picked { $action eq 'kill' || $few{$_} } 'points, but for kills', @before_swap, @after_swap;
	fault_at($action, $_, part => 'toast') foreach
	  picked { $action eq 'kill' && $_ eq 'swap-before-commit' } 'points of the TOAST table',
	  grep { !$written{$_} } @before_swap, @after_swap;
	# of a large one, the old file is removed in more than one step
	fault_at($action, 'old-file-step', table => 'large') if faults();
}

# ---- only a part has moved -----------------------------------------------------------
# The table first, or the index of the TOAST table; then the next; and on, or back.
foreach my $case (grep { 'parts' =~ /$only/ } picked { $_->[0] eq ($_->[2] eq 'undo' ? 'name' : 'smallest') && $_->[1] == 2 } 'partial states',
	map { my $order = $_; map { my $times = $_; map { [ $order, $times, $_ ] } qw(undo resume) } 1, 2 } 'name', 'smallest')
{
	my ($order, $times, $how) = @$case;
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $name = "$times of 3 moved, " . ($order eq 'name' ? 'the table' : "the TOAST table's index") . " first, $how";
	my @jobs;
	foreach my $time (1 .. $times)
	{
		change();
		set_test_point($node, 'swapped:kill');
		my $sql = $time == 1 ? "SELECT FROM move_table('heap', '$to', settings => '{\"order\": \"$order\", \"max_workers\": 1}')"
		  : "SELECT resume_move($jobs[0])";
		my $log = -s $node->logfile;
		$node->psql('postgres', $sql);
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
		wait_until_up($node);
		set_tests($node);
		push @jobs, job();
		count_fault('copy of a table, worker: kill');
	}
	# (whether the table or the TOAST table is the smaller one, is not our subject)
	my $places = places_of_table($node, 'heap');
	like($places, $order eq 'name' ? $times == 2 ? qr/^$to $to $from$/ : qr/^$to $from $from$/
		: $times == 2 ? qr/^(?:$from $to|$to $from) $to$/ : qr/^$from $from $to$/, "$name: so it is");
	check_all($name, $places);
	if ($how eq 'resume')
	{
		go_on($name, 'resume', $jobs[-1], all_at($to));
	}
	else
	{
		go_on($name, 'undo', $jobs[1], $order eq 'name' ? "$to $from $from" : "$from $from $to") if $times == 2;
		go_on($name, 'undo', $jobs[0], all_at($from));
	}
	table_ok($node, 'heap', "$name, then");
}

# ---- the disk is full ----------------------------------------------------------------
my %folder = map { split /\|/ } split /\n/,
  $node->safe_psql('postgres', "SELECT spcname, 'pg_tblspc/' || oid || '/' FROM pg_tablespace WHERE spcname LIKE 'regress%'");
foreach my $case (grep { 'full' =~ /$only/ } [ 28, 'No space left', '53100', 3 ], [ 5, 'Input/output error', '58030', 2 ])
{
	my ($errno, $what, $sqlstate, $first) = @$case;
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $name = "write $first to the target: $what";
	change();
	break_calls('write', $errno, $first, 1_000_000, $folder{$to});
	my $out = $node->safe_psql('postgres', "SELECT status, sqlstate FROM move_table('heap', '$to', settings => '{\"order\": \"name\", \"max_workers\": 1}')");
	cmp_ok(mend_calls(), '>=', 1, "$name: it was so");
	like($out, qr/^failed\|$sqlstate/, "$name: the row");
	my $places = places_of_table($node, 'heap');
	like($places, qr/^$from /, "$name: the table has stayed");
	check_all($name, $places);
	count_fault('storage of a copy of a table');
	go_on($name, 'resume', job(), all_at($to));
	table_ok($node, 'heap', "$name, then");
}

# ---- while the worker waits for its row in pg_class ------------------------------------
# which another session has changed, as GRANT does without a lock on the table before 18
foreach my $action (grep { 'row' =~ /$only/ } qw(cancel terminate kill))
{
	my $name = "$action while the row in pg_class is waited for";
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $call = held_at($node, 'swap-row', "SELECT status, sqlstate FROM move_table('heap', '$to', "
		. "settings => '{\"order\": \"name\", \"max_workers\": 1, \"lock_timeout\": \"60s\"}') WHERE name = 'heap'");
	my $grant = IndexMover::Session->new($node);
	$grant->run("BEGIN; UPDATE pg_class SET relacl = relacl WHERE oid = 'heap'::regclass");
	let_go($call);
	poll_until($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $call->{worker}", 'Lock', "$name: it waits");
	if ($action eq 'kill') { kill 'KILL', $call->{worker} or die $! }
	else { $node->safe_psql('postgres', "SELECT pg_${action}_backend($call->{worker})") }
	my ($rc, $out, $err) = finish_call($call);
	wait_until_up($node) if $action eq 'kill';
	my %row = (cancel => "canceled|57014\n", terminate => "canceled|57P01\n", kill => '');
	is($out, $row{$action}, "$name: the row") or diag $err;
	$grant->end;
	wait_for_no_worker($node);
	check_all($name, all_at($from));
	count_fault("copy of a table, worker: $action");
	go_on($name, 'resume', job(), all_at($to));
}

same_table_ok($node, $standby, 'heap', 'the standby');
table_ok($standby, 'heap', 'the standby', standby => 1);

# ---- the server is shut down, or its postmaster killed -----------------------------
foreach my $case (grep { 'shutdown' =~ /$only/ }
	picked { $_->[1] eq ($_->[0] eq 'kill' ? 'swap-before-commit' : 'copy-half') } 'points where the postmaster is killed',
	[ 'immediate', 'copy-half' ], [ 'immediate', 'swapped' ], map { [ 'kill', $_ ] } grep { !$written{$_} && $_ ne 'copy-again' } @before_swap, @after_swap)
{
	my ($how, $point) = @$case;
	my $name = $how eq 'kill' ? "postmaster killed at $point" : "immediate shutdown at $point";
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $swapped = grep { $_ eq $point } @after_swap;
	change();
	set_tests($node, test_point => "$point:" . ($how eq 'kill' ? 'doze' : 'wait'));
	my $gate = $how eq 'kill' ? undef : IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)') if $gate;
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', "SELECT FROM move_table('heap', '$to', settings => '{\"order\": \"name\", \"max_workers\": 1}')");
	$node->wait_for_log(qr/test point "$point": (?:dozing|waiting)/, $log);
	$call->{worker} = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	if ($how eq 'kill')
	{
		kill_postmaster($node, $call, $name);
	}
	else
	{
		$node->stop('immediate');
		finish_call($call);
		$gate->end;
		$node->start;
	}
	set_tests($node);
	my $parts = ($swapped ? $to : $from) . " $from $from";
	# Behind the last point the old file is on record no more; but the worker may have begun
	# the next part, a new file, before it misses the postmaster.
	like($node->safe_psql('postgres', q{SELECT string_agg(kind, '') FROM index_mover.ledger}),
		$point eq 'old-file-dropped' ? qr/^n?$/ : $swapped ? qr/^o$/ : qr/^n$/, "$name: what is left is on record");
	check_all($name, $parts, standby => 1);
	count_fault($how eq 'kill' ? 'postmaster killed, copy of a table' : 'immediate shutdown, copy of a table');
	my $back = $changes % 2;
	go_on($name, $back ? 'undo' : 'resume', job(), all_at($back ? $from : $to));
	table_ok($node, 'heap', "$name, then");
}
same_table_ok($node, $standby, 'heap', 'the standby, at the end');

$_->stop foreach $standby, $node;
done_testing();
