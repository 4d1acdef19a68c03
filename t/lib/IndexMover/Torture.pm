# IndexMover::Torture
#   The random test: writers, movers and faults at the same time, in rounds; at
#   the end of each round everything comes to rest and everything is checked.
#
#   torture(seconds => 60, seed => 1, round => 30);
#
# The seconds are those in which there is load; the checks come on top.  In each
# fourth round (of which scripts/test has none) nothing crashes: what cancels and
# terminated moves leave behind then, they have removed themselves by its end.
#
# Repeatable: the seed decides what each client, each mover and the faults do, and
# in which order; not when.  See Torture/Load.pm for how the rows are checked.
package IndexMover::Torture;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use IndexMover::Test;
use IndexMover::Torture::Faults qw(random_fault);
use IndexMover::Torture::Load qw(make_tables run_client write_replay @TABLES);
use IndexMover::Torture::Movers qw(run_mover quick_sql);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(torture);

use constant { CLIENTS => 4, MOVERS => 3, CALM_ROUND => 4 };

# What the load may meet when it is disturbed: connections lost, statements
# canceled.  Anything else is an error of ours.  (23505 from INSERT .. ON
# CONFLICT while a unique index is rebuilt is in PostgreSQL's manual.)
my $expected_by_load = qr/^(57P0[123]|57014|08\w{3}|42704:\ prepared\ transaction|55000:\ prepared\ transaction|23505
	|40001:\ could\ not\ serialize|25P0[12])/x;

sub set_up
{
	my ($t) = @_;
	my $preload = $t->{seed} % 2 ? "shared_preload_libraries = 'index_mover'" : '';
	my $node = new_node('torture', streaming => 1, conf => <<CONF);
max_worker_processes = 24
max_prepared_transactions = 50
shared_buffers = 16MB
wal_keep_size = 1GB
checkpoint_timeout = 30s
max_wal_size = 256MB
full_page_writes = @{[ $t->{seed} % 3 ? 'on' : 'off' ]}
wal_level = @{[ $t->{seed} % 5 ? 'replica' : 'logical' ]}
hot_standby_feedback = on
$preload
CONF
	$t->{node} = $node;
	$t->{connstr} = $node->connstr('postgres');
	make_zoo($node, 'zoo', 300);
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_visibility WITH SCHEMA oracle');
	# without full pages recovery crashes on an insertion into BRIN whose file is gone, after
	# the rounds' own DROP and REINDEX, too: see recovery_needs_full_pages()
	$node->safe_psql('postgres', 'SET default_tablespace = regress_slow; DROP INDEX zoo_brin; CREATE INDEX zoo_brin ON zoo (id)')
	  unless $t->{seed} % 3 || $node->pg_version < 16;
	$node->safe_psql('postgres', make_tables());

	# The twin: the same tables, in a database where nothing happens to them.
	$node->safe_psql('postgres', 'CREATE DATABASE twin');
	setup_database($node, 'twin', extension => 0);
	make_zoo($node, 'zoo', 300, 'twin');
	$node->safe_psql('twin', make_tables());

	$node->safe_psql('postgres', join('',
		"SELECT oracle.remember_metadata('$_'), oracle.remember_keys('$_');\n")) for ('zoo', 'wide', 'side', 'forgetful');
	$node->safe_psql('postgres',
		"SELECT oracle.remember_metadata('parts'), oracle.remember_keys('parts_0'), oracle.remember_keys('parts_1')");

	$node->backup('start');
	my $standby = PostgreSQL::Test::Cluster->new('torture_standby');
	$standby->init_from_backup($node, 'start', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = 2s\nhot_standby_feedback = " . ($t->{seed} % 2 ? 'on' : 'off'));
	$standby->start;
	$t->{standby} = $standby;
	return;
}

# Start a process of ours that runs $code.
sub start_process
{
	my ($code) = @_;
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	return $pid if $pid;
	# not PostgreSQL::Test's END blocks
	eval { $code->(); 1 } or do { print STDERR $@; POSIX::_exit(1) };
	POSIX::_exit(0);
}

# Wait for our processes, which have been told to stop; resumes what is paused.
sub wait_for_processes
{
	my ($t, @pids) = @_;
	my $deadline = time + IndexMover::Torture::Movers::LONGEST + 60;
	my $hung = 0;
	my %left = map { $_ => 1 } @pids;
	while (%left)
	{
		foreach my $pid (keys %left)
		{
			delete $left{$pid} if waitpid($pid, POSIX::WNOHANG()) > 0;
		}
		quick_sql($t->{connstr}, "SELECT resume_move(job) FROM index_mover_progress WHERE throttled_by = 'pause_move()'", 20);
		usleep(100_000);
		if (%left && time > $deadline)
		{
			diag quick_sql($t->{connstr},
				'SELECT pid, backend_type, state, wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 120) FROM '
					. 'pg_stat_activity', 20);
			$hung += keys %left;
			kill 'KILL', keys %left;
			$deadline = time + 10;
		}
	}
	return $hung;
}

# Writers, movers and faults until $until.
sub disturb
{
	my ($t, $until) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $stop = "$dir/stop";
	my (@clients, @movers);
	foreach my $c (1 .. CLIENTS)
	{
		push @clients, start_process(sub {
				run_client(seed => $t->{seed}, client => $c, first => $t->{next}{$c} || 1, pause => 0.02,
					connstr => $t->{connstr}, stop => $stop, report => "$dir/client$c");
			});
	}
	foreach my $m (1 .. MOVERS)
	{
		push @movers, start_process(sub {
				run_mover(seed => $t->{seed} + 1000 * $t->{round}, number => $m,
					connstr => $t->{connstr}, stop => $stop, report => "$dir/mover$m");
			});
	}
	$t->{clients} = \@clients;
	$t->{movers} = \@movers;
	srand($t->{seed} + 7919 * $t->{round});
	my @done;
	$t->{tried} = {};
	while (time < $until)
	{
		usleep(100_000 + int(rand(900_000)));
		my $name = random_fault($t, is_calm($t));
		push @done, $name if $name;
	}
	note "round $t->{round}: ", join(', ', @done);
	append_to_file($stop, 'stop');
	is(wait_for_processes($t, @clients, @movers), 0, "round $t->{round}: every process ends");

	foreach my $c (1 .. CLIENTS)
	{
		foreach (split /\n/, slurp_file("$dir/client$c"))
		{
			if (/^next (\d+)/) { $t->{next}{$c} = $1 }
			elsif (/^done (\d+) (.*)/) { $t->{counts}{"load: $2"} += $1 }
			elsif (/^error (\d+) (.*)/)
			{
				my ($number, $error) = ($1, $2);
				$t->{counts}{'load: error ' . substr($error, 0, 5)} += $number;
				push @{ $t->{odd} }, "load: $number times $error" unless $error =~ $expected_by_load;
			}
		}
	}
	foreach my $m (1 .. MOVERS)
	{
		next unless -f "$dir/mover$m";
		foreach (split /\n/, slurp_file("$dir/mover$m"))
		{
			if (/^calls (\d+)/) { $t->{counts}{'calls'} += $1 }
			elsif (/^(row|error) (\d+) (.*)/) { $t->{counts}{"$1: $3"} += $2 }
			elsif (/^odd (.*)/) { push @{ $t->{odd} }, $1 }
		}
	}
	return;
}

# Bring everything to rest: jobs end, prepared transactions are decided as their
# clients would, changed definitions are changed back, leftovers are removed.
sub come_to_rest
{
	my ($t) = @_;
	my $node = $t->{node};
	wait_until_up($node);
	foreach my $gid (split /\n/, $node->safe_psql('postgres', "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'torture%'"))
	{
		my ($client, $n) = $gid =~ /_(\d+)_(\d+)$/;
		my $end = IndexMover::Torture::Load::transaction($t->{seed}, $client, $n)->{finish};
		$node->safe_psql('postgres', "$end PREPARED '$gid'");
	}
	# queued jobs of calls with wait => false go on for a while
	$node->safe_psql('postgres', "SELECT resume_move(job) FROM index_mover_progress WHERE throttled_by = 'pause_move()'");
	my $seconds = wait_for_no_worker($node);
	note "jobs have ended after $seconds s";
	$node->safe_psql('postgres', $_) for reverse @{ $t->{undo} };
	$t->{undo} = [];
	my $left = 'SELECT kind, object, action FROM index_mover_cleanup(dry_run => true)';
	if (is_calm($t))
	{
		# the successor of a worker that was terminated may only just be starting
		my $deadline = time + IndexMover::Torture::Movers::LONGEST;
		usleep(200_000) while $node->safe_psql('postgres', $left) ne '' && time < $deadline;
		is($node->safe_psql('postgres', $left), '', "round $t->{round}: where nothing crashes, nothing is left for index_mover_cleanup()");
		$t->{counts}{'rounds without crashes'}++;
	}
	my @left = split /\n/, $node->safe_psql('postgres', 'SELECT kind, object, action FROM index_mover_cleanup()');
	$t->{counts}{'left to index_mover_cleanup()'} += @left;
	wait_for_no_worker($node);
	# A REINDEX CONCURRENTLY that was not ours, and did not end, leaves its own; so
	# does a command that rewrites a table one of whose indexes is being rebuilt.
	drop_cores($t, 'REINDEX CONCURRENTLY', "c.relname LIKE 'zoo\\_other\\_cc%' AND NOT i.indisvalid")
	  if $t->{tried}{'reindex concurrently'};
	drop_cores($t, 'a rewritten table', "i.indrelid = 'side'::regclass AND c.relname ~ '_cc(new|old)' AND i.indisvalid")
	  if grep { $t->{tried}{$_} } 'truncate', 'cluster', 'vacuum full';
	return;
}

# Whether this is a round without crashes.
sub is_calm
{
	my ($t) = @_;
	return $t->{round} % CALM_ROUND == 0;
}

# Drop and count the indexes that core has left where it was disturbed.
sub drop_cores
{
	my ($t, $by, $condition) = @_;
	my $drop = $t->{node}->safe_psql('postgres',
		"SELECT format('DROP INDEX %s;', i.indexrelid::regclass) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE $condition");
	return if $drop eq '';
	note "not ours, but left by $by: $drop";
	$t->{counts}{"indexes left by core, $by"} += () = $drop =~ /^/mg;
	$t->{node}->safe_psql('postgres', $drop);
	return;
}

# All rows of a table, in the same order on all servers.
sub rows_of
{
	my ($node, $db, $table, $columns) = @_;
	return $node->safe_psql($db,
		"SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SELECT $columns FROM $table ORDER BY id");
}

# Where two texts differ first.
sub first_difference
{
	my ($one, $two) = @_;
	my @one = split /\n/, $one;
	my @two = split /\n/, $two;
	foreach my $i (0 .. ($#one > $#two ? $#one : $#two))
	{
		my ($x, $y) = ($one[$i] // '(none)', $two[$i] // '(none)');
		return "$x\nagainst\n$y" if $x ne $y;
	}
	return 'none';
}

# No orphaned file with something in it, and no missing one.  PostgreSQL makes the
# file of a new index before anything of it is committed: who is killed between
# the two, REINDEX or CREATE INDEX, leaves it behind, empty.
sub no_bytes_lost
{
	my ($t, $node, $name) = @_;
	my @files = split /\n/, $node->safe_psql('postgres', 'SELECT * FROM oracle.files()');
	my @empty = grep { /^orphan\|.*\|0$/ } @files;
	$t->{counts}{'empty files left by core'} = @empty if @empty > ($t->{counts}{'empty files left by core'} // 0);
	is(join("\n", grep { !/^orphan\|.*\|0$/ } @files), '', "$name: no orphaned bytes, and no missing file");
	return;
}

sub check
{
	my ($t, $node, $name) = @_;
	foreach my $table ('zoo', 'parts_0', 'parts_1', 'wide')
	{
		verdict_ok($node, $table, "$name: $table", max_keys => 150);
	}
	foreach my $table ('forgetful', 'side')
	{
		my $verdict = $node->safe_psql('postgres', "SELECT oracle.verdict('$table', 150)");
		like($verdict, qr/^[1-9]\d* right(, no keys)?$/, "$name: $table: lookup both ways, amcheck");
	}
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL);
SELECT oracle.bt_index_parent_check(i.indexrelid, true, true)
  FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid WHERE c.relname = 'wide';
SELECT sum(length(body)) FROM wide;
SQL
	is($rc, 0, "$name: the TOAST index") or diag $err;
	maps_ok($t, $node, $name);
	no_bytes_lost($t, $node, $name);
	leftovers_ok($node, $name, within => 10);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_progress_create_index'), '0', "$name: no progress row is left");
	return;
}

# What the visibility maps say is true, and amcheck finds nothing in tables and TOAST
# tables.
sub maps_ok
{
	my ($t, $node, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL);
CREATE TEMP TABLE all_tables AS
SELECT r::regclass FROM pg_class c, LATERAL (VALUES (c.oid), (nullif(c.reltoastrelid, 0))) v(r)
 WHERE c.relname IN ('zoo', 'parts_0', 'parts_1', 'wide', 'side') AND c.relkind = 'r' AND r IS NOT NULL;
SELECT 'not visible', r, v FROM all_tables, oracle.pg_check_visible(r) v;
SELECT 'not frozen', r, v FROM all_tables, oracle.pg_check_frozen(r) v;
SELECT 'damaged', r, v FROM all_tables, oracle.verify_heapam(r, check_toast => true) v;
SELECT count(*) >= 6 FROM all_tables;
SQL
	return is("$rc $out", '0 t', "$name: visibility maps, amcheck of the tables") || (diag($err), 0);
}

sub check_all
{
	my ($t, $name) = @_;
	my $node = $t->{node};
	check($t, $node, $name);
	foreach my $table ('zoo', 'parts', 'wide', 'side', 'forgetful')
	{
		# a crash forgets the counters
		is($node->safe_psql('postgres', "SELECT * FROM oracle.metadata_changes('$table') WHERE attribute <> 'scans'"),
			'', "$name: $table: definition, options, statistics, dependencies as before");
	}

	# The twin does what torture_log says that it has not done yet.
	my @log = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', 'SELECT client, n FROM torture_log ORDER BY client, n');
	my %done = map { $_ => 1 } split /\n/, $node->safe_psql('twin', 'SELECT client, n FROM torture_log');
	my @new = grep { !$done{"$_->[0]|$_->[1]"} } @log;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/replay.sql';
	write_replay($file, $t->{seed}, \@new);
	my ($out, $err);
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('twin'), '-v', 'ON_ERROR_STOP=1', '-f', $file ], '>', \$out, '2>', \$err)
	  or diag "replay: $err";
	is($err, '', "$name: " . @new . ' transactions replayed on the twin');
	$t->{counts}{'transactions replayed'} += @new;

	$node->wait_for_catchup($t->{standby}, 'replay', $node->lsn('insert'));
	foreach my $table (@TABLES)
	{
		my $here = rows_of($node, 'postgres', @$table);
		my $twin = rows_of($node, 'twin', @$table);
		my $number = () = $here =~ /\n/g;
		ok($here eq $twin, "$name: $table->[0]: the same rows as the twin ($number)")
		  or diag first_difference($here, $twin);
		ok($here eq rows_of($t->{standby}, 'postgres', @$table), "$name: $table->[0]: the same rows on the standby");
	}
	check_standby($t, $name);
	return;
}

# What can be asked of a standby that is one: no index can be hidden there.
sub check_standby
{
	my ($t, $name) = @_;
	my $standby = $t->{standby};
	no_bytes_lost($t, $standby, "$name, standby");
	my ($rc, $out, $err) = $standby->psql('postgres', <<SQL);
SELECT count(oracle.bt_index_check(i.indexrelid, true))
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
 WHERE i.indrelid IN ('zoo'::regclass, 'parts_0'::regclass, 'parts_1'::regclass, 'wide'::regclass, 'side'::regclass) AND a.amname = 'btree';
SQL
	is($rc, 0, "$name, standby: amcheck") or diag $err;
	return;
}

sub torture
{
	my (%options) = @_;
	my $t = { seed => $options{seed}, next => {}, counts => {}, odd => [], undo => [], round => 0 };
	note "seed $t->{seed}";
	set_up($t);
	for (my $left = $options{seconds}; $left > 0; $left -= $options{round})
	{
		$t->{round}++;
		my $start = time;
		disturb($t, $start + ($left < $options{round} ? $left : $options{round}));
		come_to_rest($t);
		check_all($t, "round $t->{round}");
		note sprintf('round %d: %.0f s', $t->{round}, time - $start);
	}

	is(join("\n", @{ $t->{odd} }), '', 'no error that no user should ever see');

	# At last the standby takes over.
	$t->{node}->stop('immediate');
	$t->{standby}->promote;
	poll_until($t->{standby}, 'SELECT pg_is_in_recovery()', 'f', 'promotion');
	check($t, $t->{standby}, 'promoted standby');
	my ($rc, $out, $err) = $t->{standby}->psql('postgres',
		"SELECT DISTINCT status FROM move_indexes('zoo', 'regress_fast') UNION SELECT status FROM move_indexes('zoo', 'regress_slow')");
	unlike($out, qr/failed|canceled/, 'promoted standby: moves work') or diag $err;
	is($rc, 0, 'promoted standby: the calls end well') or diag $err;
	$t->{standby}->stop;

	my ($faults, $in_moves) = (0, 0);
	foreach my $name (sort keys %{ $t->{counts} })
	{
		note "count: torture, $name $t->{counts}{$name}";
		$faults += $t->{counts}{$name} if $name =~ /^fault: /;
		$in_moves += $t->{counts}{$name} if $name =~ /^in a move: /;
	}
	note "count: torture, rounds $t->{round}";
	note "count: torture, faults injected $faults";
	note "count: torture, faults injected while something moved $in_moves";
	return;
}

1;
