# A move of a table that is killed, fails, is canceled or terminated at every step, of the
# first, the second and the last of its files: table, TOAST table and its index are all
# where they were, or all where they were to be, whole, with their visibility maps, here
# and on a standby; their rows say the same; what is left is on record and goes; what has
# not moved is moved by resume_move(), and what has goes back with undo_move().
#
# Fault (tables): worker killed at every step of each of the three files of a table, its TOAST
#   table and the index of that, within the swap, too; failed, canceled, terminated, or its
#   postmaster killed, at every step of the first, and at some of the others; aborted at some: all
#   three or none; each followed by `resume_move()` or `undo_move()`; a full or failing target at
#   each file; immediate shutdown
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

# The points of each file, in the order in which a move comes there; those of the swap
# come for each file, too, or once for all.
my @of_copy = qw(copy-registered copy-created copy-logged copy-first copy-half copy-end copy-round
  copy-before-sync copy-synced copy-again copy-verifying copy-buffered-round);
my @of_swap = qw(swap-ready swap-asking swap-file-locked swap-locked swap-block swap-copied swap-row swap-file-set swap-before-commit);
my @after_swap = qw(swapped prewarm-step prewarmed old-file-start old-file-drop old-file-dropped);
my %each = map { $_ => 1 } qw(swap-file-locked swap-block swap-file-set prewarm-step old-file-start old-file-drop old-file-dropped);
my %class = map { $_ => 1 } qw(copy-registered copy-created copy-half copy-synced swap-before-commit swapped old-file-drop);
# what is done after another end than a kill is that of an index, at each class of t/021; and
# abort() differs from a kill in its signal only
my %few = map { $_ => 1 } 'copy-half 2', 'swap-file-locked 3', 'swap-file-set 2', 'swap-before-commit 1', 'swapped 1';
# of the second and the last file, where not all of them are tried
my %also = map { $_ => 1 } 'copy-registered 2', 'copy-half 2', 'copy-synced 3', 'swap-file-locked 2', 'swap-file-locked 3',
  'swap-file-set 2', 'swap-file-set 3', 'old-file-drop 2', 'old-file-dropped 3';
my %written = ('copy-round' => 'copy-end', 'copy-buffered-round' => 'copy-synced');
my $changes = 0;

# "point n": the n-th time that the move comes there.  (The index of the TOAST table has
# too few blocks for some of them, what is written meanwhile is written at the first, and
# two of them come several times for a file that is large.)
my %once = map { $_ => 1 } qw(copy-again copy-logged copy-verifying), keys %written;
my @points = ((map { my $n = $_; map { "$_ $n" } grep { $n == 1 || !$once{$_} } @of_copy } 1 .. 3),
	map { my $point = $_; map { "$point $_" } $each{$point} ? 1 .. 3 : 1 } @of_swap, @after_swap);

# Whether a point is one of the first file, or of those of the others that are tried with it.
sub is_of_first { my ($point) = @_; return $point =~ / 1$/ || $also{$point}; }

sub change { change_table($node, $_[0] || 'heap', ++$changes); return; }

# The rows of the last job, as they are: table, TOAST table and index have fared alike.
sub rows_ok
{
	my ($name, $status) = @_;
	return like($node->safe_psql('postgres', <<'SQL'), qr/^3\|1\|(?:$status)$/, "$name: the rows of all three say the same");
SELECT count(*), count(DISTINCT (status, sqlstate, started_at, finished_at, lock_time, lock_attempts, message)), min(status)
  FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_history)
SQL
}

# What must hold after a fault, whatever it was.
sub check_all
{
	my ($name, $place, %options) = @_;
	my $table = $options{table} || 'heap';
	is(places_of_table($node, $table), all_at($place), "$name: where table, TOAST table and its index are");
	rows_ok($name, $options{status}) if $options{status};
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

# Move it, or move it back if it has moved.
sub go_on
{
	my ($name, $how, $job, $expected, %options) = @_;
	my $new = $node->safe_psql('postgres', "SELECT ${how}_move($job)");
	$node->psql('postgres', "CALL wait_for_move($new)") if $new;
	wait_for_no_worker($node);
	is(places_of_table($node, $options{table} || 'heap'), all_at($expected), "$name: ${how}_move()");
	return;
}

sub fault_at
{
	my ($action, $point_and_time, %options) = @_;
	my ($point, $n) = split / /, $point_and_time;
	my $table = $options{table} || 'heap';
	my $name = "$action at $point" . ($n == 1 ? '' : ", time $n") . ($table eq 'heap' ? '' : ", $table");
	my ($from) = split / /, places_of_table($node, $table);
	my $to = other_place($from);
	my $swapped = grep { $_ eq $point } @after_swap, 'old-file-step';
	my $place = $swapped ? $to : $from;
	my $waits = $action eq 'terminate' || $action eq 'cancel';
	my $time = $n == 1 ? $point : "$point:$n";

	change($table);
	set_tests($node, test_point => "$time:" . ($waits ? 'wait' : $action), test_mutation => $point eq 'copy-again' ? 'again' : '');
	my $gate;
	if ($waits)
	{
		$gate = IndexMover::Session->new($node);
		$gate->run('SELECT pg_advisory_lock(0, ' . ($written{$point} ? 5960 : 5959) . ')');
	}
	my $log = -s $node->logfile;
	my $sql = "SELECT string_agg(status || ' ' || coalesce(sqlstate, '-'), ',') FROM move_table('$table', '$to')";
	my $call;
	if ($written{$point})
	{
		# the table has more than 256 pages with rows, and is the largest of the three, and
		# so the first
		$node->safe_psql('postgres', "UPDATE $_ SET filler = repeat(md5(id::text), 50) WHERE id <= 1000000")
			foreach $table, "${table}_twin";
		until ($node->safe_psql('postgres',
			"SELECT pg_relation_size(oid) > pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = '$table'::regclass") eq 't')
		{
			$node->safe_psql('postgres', "UPDATE $_ SET v = v") foreach $table, "${table}_twin";
		}
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
		$node->wait_for_log(qr/(?:did not move|moved) table |terminating background worker/, $log);
		$gate->end;
	}
	my ($rc, $out, $err) = finish_call($call);
	wait_until_up($node) if $action eq 'kill' || $action eq 'panic';
	ok($node->log_contains($action eq 'panic' ? qr/terminated by signal 6/ : qr/test point "$point"/, $log), "$name: it came there");
	set_tests($node);
	my $job = job();
	wait_for_no_worker($node);
	if ($action eq 'kill' || $action eq 'panic')
	{
		is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), files_on_record($point, $n),
			"$name: what is left is on record");
		is($rc == 0 ? $out : '', '', "$name: the caller loses its connection");
	}
	else
	{
		my %row = (error => 'failed XX000', cancel => 'canceled 57014', terminate => 'canceled 57P01');
		if ($swapped) { like($out, qr/^(moved \S+),\1,\1$/, "$name: the rows") or diag $err }
		else { is($out, join(',', ($row{$action}) x 3) . "\n", "$name: the rows") or diag $err }
	}
	check_all($name, $place, table => $table, standby => $class{$point} && $action =~ /kill|panic/,
		status => $action =~ /kill|panic/ ? 'interrupted' : $swapped ? 'moved' : $action eq 'error' ? 'failed' : 'canceled');
	count_fault("copy of a table, worker: $action");
	# (there may be nothing to do)
	if ($changes % 2) { go_on($name, 'undo', $job, $from, table => $table) }
	else { go_on($name, 'resume', $job, $to, table => $table) }
	table_ok($node, $table, "$name, then") if faults() || $class{$point};
	return;
}

# (to try one of them)
my ($only, $at) = ($ENV{ONLY} || '.', $ENV{AT} || '.');
foreach my $action (grep { "worker $_" =~ /$only/ } qw(kill panic error terminate cancel))
{
	my @some = grep { $action eq 'panic' ? $few{$_} : $action eq 'kill' || is_of_first($_) } @points;
	fault_at($action, $_) foreach grep { $_ =~ /$at/ }
	  picked { $action eq 'kill' ? is_of_first($_) : $action ne 'panic' && $few{$_} } 'points', @some;
	# of a large one, the old file is removed in more than one step
	fault_at($action, 'old-file-step 1', table => 'large') if faults() && $action ne 'panic';
}

# ---- the disk is full ----------------------------------------------------------------
# and when the first file, or the first two, have been copied
my %directory = map { split /\|/ } split /\n/,
  $node->safe_psql('postgres', "SELECT spcname, 'pg_tblspc/' || oid || '/' FROM pg_tablespace WHERE spcname LIKE 'regress%'");
foreach my $case (grep { 'full' =~ /$only/ } [ 28, 'No space left', '53100', 1 ], [ 28, 'No space left', '53100', 2 ],
	[ 28, 'No space left', '53100', 3 ], [ 5, 'Input/output error', '58030', 1 ])
{
	my ($errno, $what, $sqlstate, $file) = @$case;
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $name = "writes of file $file to the target: $what";
	change();
	my $call = held_at($node, $file == 1 ? 'copy-first' : "copy-created:$file",
		"SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ',') FROM move_table('heap', '$to')");
	break_calls('write', $errno, 1, 1_000_000, $directory{$to});
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	cmp_ok(mend_calls(), '>=', 1, "$name: it was so");
	is($out, "failed $sqlstate\n", "$name: the rows") or diag $err;
	check_all($name, $from, status => 'failed');
	count_fault('storage of a copy of a table');
	go_on($name, 'resume', job(), $to);
	table_ok($node, 'heap', "$name, then");
}

# ---- while the worker waits for a row in pg_class --------------------------------------
# which another session has changed, as GRANT does without a lock on the table before 18
foreach my $case (grep { 'row' =~ /$only/ } [ 'cancel', q{'heap'::regclass} ],
	[ 'terminate', q{'heap'::regclass} ], [ 'kill', q{(SELECT reltoastrelid FROM pg_class WHERE oid = 'heap'::regclass)} ])
{
	my ($action, $oid) = @$case;
	my $name = "$action while the row " . ($oid =~ /toast/ ? 'of the TOAST table ' : '') . 'in pg_class is waited for';
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $call = held_at($node, 'swap-row', "SELECT string_agg(concat_ws(' ', status, sqlstate), ',') FROM move_table('heap', '$to', "
		. "settings => '{\"lock_timeout\": \"60s\"}')");
	my $grant = IndexMover::Session->new($node);
	$grant->run("BEGIN; UPDATE pg_class SET relacl = relacl WHERE oid = $oid");
	let_go($call);
	poll_until($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $call->{worker}", 'Lock', "$name: it waits");
	if ($action eq 'kill') { kill 'KILL', $call->{worker} or die $! }
	else { $node->safe_psql('postgres', "SELECT pg_${action}_backend($call->{worker})") }
	my ($rc, $out, $err) = finish_call($call);
	wait_until_up($node) if $action eq 'kill';
	my %row = (cancel => 'canceled 57014', terminate => 'canceled 57P01');
	is($out, $row{$action} ? join(',', ($row{$action}) x 3) . "\n" : '', "$name: the rows") or diag $err;
	$grant->end;
	wait_for_no_worker($node);
	check_all($name, $from, status => $action eq 'kill' ? 'interrupted' : 'canceled');
	count_fault("copy of a table, worker: $action");
	go_on($name, 'resume', job(), $to);
}

same_table_ok($node, $standby, 'heap', 'the standby');
table_ok($standby, 'heap', 'the standby', standby => 1);

# ---- the server is shut down, or its postmaster killed -----------------------------
foreach my $case (grep { 'shutdown' =~ /$only/ && $_->[1] =~ /$at/ }
	picked { $_->[1] eq ($_->[0] eq 'kill' ? 'swap-file-set 2' : 'copy-half 1') } 'points where the postmaster is killed',
	[ 'immediate', 'copy-half 1' ], [ 'immediate', 'copy-half 2' ], [ 'immediate', 'swap-file-set 2' ], [ 'immediate', 'swapped 1' ],
	map { [ 'kill', $_ ] } grep { is_of_first($_) && !$written{ (split / /)[0] } && !/^copy-again/ } @points)
{
	my ($how, $point_and_time) = @$case;
	my ($point, $n) = split / /, $point_and_time;
	my $name = ($how eq 'kill' ? 'postmaster killed' : 'immediate shutdown') . " at $point" . ($n == 1 ? '' : ", time $n");
	my ($from) = split / /, places_of_table($node, 'heap');
	my $to = other_place($from);
	my $swapped = grep { $_ eq $point } @after_swap;
	change();
	set_tests($node, test_point => ($n == 1 ? $point : "$point:$n") . ':' . ($how eq 'kill' ? 'doze' : 'wait'));
	my $gate = $how eq 'kill' ? undef : IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)') if $gate;
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', "SELECT FROM move_table('heap', '$to')");
	$node->wait_for_log(qr/test point "$point": (?:dozing|waiting)/, $log);
	if ($how eq 'kill')
	{
		# (a swap may have locked what a query needs)
		($call->{worker}) = slurp_file($node->logfile, $log) =~ /\[(\d+)\][^\n]* test point "$point": dozing/;
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
	# Behind the last point the last old file is on record no more.
	is($node->safe_psql('postgres', q{SELECT string_agg(kind, '' ORDER BY kind) FROM index_mover.ledger}),
		($swapped ? 'o' : 'n') x files_on_record($point, $n), "$name: what is left is on record");
	# A worker that wakes sees first that the postmaster is gone, or that its caller is, or has done all
	my $other = $how ne 'kill' ? '' : $swapped ? '|moved' : '|canceled';
	check_all($name, $swapped ? $to : $from, standby => 1, status => "interrupted$other");
	count_fault($how eq 'kill' ? 'postmaster killed, copy of a table' : 'immediate shutdown, copy of a table');
	my $back = $changes % 2;
	go_on($name, $back ? 'undo' : 'resume', job(), $back ? $from : $to);
	table_ok($node, 'heap', "$name, then");
}
same_table_ok($node, $standby, 'heap', 'the standby, at the end');

$_->stop foreach $standby, $node;
done_testing();
