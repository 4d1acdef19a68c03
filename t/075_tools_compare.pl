# The same harness for us, for what PostgreSQL itself offers, and for pg_repack
# where it is installed: an index is moved under load, the move is canceled, and
# its process killed, at random moments; what is left over is counted, before
# a user does anything about it, and again after the next call.  Only ours must be
# nothing, after a kill by the second count; the others' numbers are for
# docs/reliability.md, see scripts/reliability.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Probe;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_faults();

my $CANCELS = $ENV{INDEX_MOVER_CANCELS} || 3;
my $KILLS = $ENV{INDEX_MOVER_KILLS} || 2;
# what takes long, or is a lesson about the others only: for scripts/reliability
my $DEADLOCKS = $ENV{INDEX_MOVER_DEADLOCKS} || 0;
my $COUNTING = $DEADLOCKS > 0;
my $ROWS = $ENV{INDEX_MOVER_ROWS} || 150_000;
my $seed = $ENV{INDEX_MOVER_SEED} || (time ^ $$) % 1_000_000;
note "seed $seed";
srand($seed);

# (the others verify nothing either)
my $node = new_node('compare', verify => 0, conf => "max_wal_size = 2GB\ncheckpoint_timeout = 1h");
$node->safe_psql('postgres', <<SQL);
CREATE TABLE c (i int PRIMARY KEY, s text, n int DEFAULT 0) WITH (fillfactor = 80);
INSERT INTO c SELECT g, md5(g::text) FROM generate_series(1, $ROWS) g;
CREATE INDEX c_s ON c (s) TABLESPACE regress_slow;
VACUUM ANALYZE c;
SELECT oracle.remember_keys('c');
SQL

my $have_repack = 0;
{
	chomp(my $bindir = `pg_config --bindir`);
	$have_repack = -x "$bindir/pg_repack" && $node->psql('postgres', 'CREATE EXTENSION pg_repack') == 0;
}

# name => what to run (%s: the target), and whose process does the work
my @tools = (
	{ name => 'index_mover copy', sql => "SELECT status FROM move_indexes('c_s', '%s', method => 'copy')",
		who => "backend_type = 'index_mover'", ours => 1 },
	{ name => 'index_mover rebuild', sql => "SELECT status FROM move_indexes('c_s', '%s', method => 'rebuild')",
		who => "backend_type = 'index_mover'", ours => 1 },
	{ name => 'REINDEX CONCURRENTLY', sql => 'REINDEX (TABLESPACE %s) INDEX CONCURRENTLY c_s', who => "application_name = 'tool'" },
	{ name => 'ALTER INDEX', sql => 'ALTER INDEX c_s SET TABLESPACE %s', who => "application_name = 'tool'" });
push @tools, { name => 'pg_repack', command => [ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', 'postgres', '-i', 'c_s', '-s' ],
	who => "backend_type = 'client backend' AND query LIKE 'CREATE%INDEX%'" }
  if $have_repack;

@tools = grep { $_->{name} =~ /$ENV{INDEX_MOVER_TOOLS}/ } @tools if $ENV{INDEX_MOVER_TOOLS};

sub start_tool
{
	my ($tool) = @_;
	my $to = elsewhere($node, 'c_s');
	return start_call($node, 'tool', sprintf($tool->{sql}, $to)) if $tool->{sql};
	my $call = { name => 'tool', node => $node, out => '', err => '' };
	$call->{harness} = IPC::Run::start([ @{ $tool->{command} }, $to ], '<', \'', '>', \$call->{out}, '2>', \$call->{err},
		$call->{timer} = IPC::Run::timer(180));
	return $call;
}

# The end of a call; true if it did what it was to do.
sub end_tool
{
	my ($tool, $call, $from) = @_;
	my ($status) = finish_call($call);
	my $moved = tablespace_of_index($node, 'c_s') ne $from;
	note "$tool->{name}: $call->{out} $call->{err}" unless $moved;
	return $moved;
}

# Invalid indexes, other things in the catalogs, and bytes of orphaned files.
sub left_over
{
	my $invalid = $node->safe_psql('postgres', "SELECT count(*) FROM pg_index WHERE NOT indisvalid");
	my $other = $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'repack') AND relname ~ "
			. "'^(log|table)_[0-9]+\$'");
	my $bytes = $node->safe_psql('postgres', "SELECT coalesce(sum(size), 0) FROM oracle.files() WHERE problem = 'orphan'");
	return ($invalid, $other, $bytes);
}

# What a person would have to do.
my $known_orphans = 0;
sub clean_by_hand
{
	# one of ours that was killed behind its swap is not counted, and has left its old file
	$node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()');
	poll_until($node, 'SELECT count(*) FROM index_mover.ledger', '0', 'cleanup before a round');
	my $drop = $node->safe_psql('postgres',
		"SELECT string_agg(format('DROP INDEX %s', indexrelid::regclass), '; ') FROM pg_index WHERE NOT indisvalid");
	$node->safe_psql('postgres', $drop) if $drop;
	($known_orphans) = $node->safe_psql('postgres', "SELECT coalesce(sum(size), 0) FROM oracle.files() WHERE problem = 'orphan'");
	return;
}

foreach my $tool (@tools)
{
	my $name = $tool->{name};
	my %n = (cancels => 0, kills => 0, 'next call works' => 0, 'next call fails' => 0);
	foreach my $when ('after cancels', 'after kills', 'after kills and the next call')
	{
		$n{"$_ $when"} = 0 foreach 'invalid indexes', 'orphaned bytes';
	}

	$node->safe_psql('postgres', "SELECT oracle.remember_metadata('c')");

	# once in peace, with a reader and a writer that feel it
	my $probe = IndexMover::Probe->new($node, read => "SELECT n FROM c WHERE s = md5('77')",
		write => "UPDATE c SET s = md5(s), n = n + 1 WHERE i = 99");
	my $from = tablespace_of_index($node, 'c_s');
	my $start = time;
	ok(end_tool($tool, start_tool($tool), $from), "$name: moves the index");
	my $duration = time - $start;
	my $felt = $probe->end;
	is_deeply([ map { $felt->{$_}{errors} } qw(read write) ], [ {}, {} ], "$name: no client had an error") if $tool->{ours};
	note sprintf 'count: compare, %s, longest block of a %s in ms %d', $name, $_->[1], 1000 * $felt->{ $_->[0] }{longest}
	  for [ 'write', 'writer' ], [ 'read', 'reader' ];

	# the catalogs and the rows after that
	if ($tool->{ours} || $COUNTING)
	{
		my $compared = $node->safe_psql('postgres', "SELECT count(*) FROM oracle.old_metadata WHERE rel = 'c' AND attribute <> 'scans'");
		my $lost = $node->safe_psql('postgres', "SELECT count(*) FROM oracle.metadata_changes('c') WHERE attribute <> 'scans'");
		@n{ 'attributes compared', 'attributes lost' } = ($compared, $lost);
		is($lost, 0, "$name: no attribute is lost") if $tool->{ours};
	}
	if ($COUNTING)
	{
		@n{ 'rows compared both ways', 'rows missing, extra, or with another key' } = split /\|/,
		  $node->safe_psql('postgres', "SELECT compared, wrong FROM oracle.examine('c', 300)");
	}

	# A transaction that has read from the table, and then wants to alter it,
	# while the index is on its way: PostgreSQL's own deadlock, unless one of them
	# gives way.
	if ($COUNTING)
	{
		@n{ 'DDL of one who has read before', 'deadlocks', 'hangs' } = (0, 0, 0);
		foreach my $round (1 .. $DEADLOCKS)
		{
			my $ddl = IndexMover::Session->new($node, name => 'ddl');
			$ddl->run('BEGIN; SELECT count(*) FROM c WHERE i = 1');
			$from = tablespace_of_index($node, 'c_s');
			$start = time;
			my $call = start_tool($tool);
			my $waiting = 0;
			until ($waiting || time - $start > 60 || !call_is_running($call))
			{
				$waiting = $node->safe_psql('postgres',
					"SELECT count(*) FROM pg_stat_activity WHERE $tool->{who} AND state IS DISTINCT FROM 'idle'");
			}
			$ddl->send('ALTER TABLE c ALTER n SET DEFAULT 0; COMMIT');
			$ddl->answer;
			my $deadlock = $ddl->errors =~ /40P01/ ? 1 : 0;
			$ddl->run('ROLLBACK') if $ddl->errors =~ /ERROR/;
			$ddl->end;
			my $moved = end_tool($tool, $call, $from);
			$deadlock = 1 if "$call->{out} $call->{err}" =~ /40P01|deadlock detected/;
			wait_for_no_worker($node);
			$n{'DDL of one who has read before'}++;
			$n{deadlocks} += $deadlock;
			$n{hangs}++ if time - $start > 60;
			clean_by_hand();
		}
		# (a rebuild is PostgreSQL's own inside: it may be the one who has to go)
		is($n{deadlocks}, 0, "$name: no deadlock with DDL of one who has read before") if $name eq 'index_mover copy';
	}

	# one that is over too soon is not counted, and tried again a few times
	foreach my $how (('cancel') x (3 * $CANCELS), ('kill') x (3 * $KILLS))
	{
		next if $n{"${how}s"} >= ($how eq 'cancel' ? $CANCELS : $KILLS);
		clean_by_hand();
		my $before = $known_orphans;
		$from = tablespace_of_index($node, 'c_s');
		$start = time;
		my $look = IndexMover::Session->new($node);
		my $call = start_tool($tool);
		my $pid;
		until (defined $pid || time - $start > 60 || !call_is_running($call))
		{
			my $found = $look->run(
				"SELECT pid FROM pg_stat_activity WHERE $tool->{who} AND state IS DISTINCT FROM 'idle' ORDER BY backend_start DESC "
					. "LIMIT 1");
			$pid = $found if $found;
		}
		usleep(1_000_000 * rand($duration * 0.6));
		my $hit = defined $pid && call_is_running($call) && kill($how eq 'kill' ? 'KILL' : 'INT', $pid);
		finish_call($call);
		$look->end;
		wait_until_up($node);
		usleep(100_000), wait_until_up($node) if $how eq 'kill';
		next unless $hit && tablespace_of_index($node, 'c_s') eq $from;
		$n{"${how}s"}++;
		wait_for_no_worker($node);
		my $look_for_rest = sub {
			my ($when) = @_;
			my ($invalid, $other, $bytes) = left_over();
			$n{"invalid indexes $when"} += $invalid;
			$n{"orphaned bytes $when"} += $bytes - $before;
		};
		$look_for_rest->("after ${how}s");
		$n{ end_tool($tool, start_tool($tool), $from) ? 'next call works' : 'next call fails' }++;
		if ($how eq 'kill')
		{
			# ours may still be at what it removes behind its move
			wait_for_no_worker($node);
			poll_until($node, 'SELECT count(*) FROM index_mover.ledger', '0', "$name: cleanup") if $tool->{ours};
			$look_for_rest->('after kills and the next call');
		}
	}
	note "count: compare, $name, $_ $n{$_}" for sort keys %n;
	if ($tool->{ours})
	{
		foreach my $when ('after cancels', 'after kills and the next call')
		{
			is($n{"invalid indexes $when"}, 0, "$name: no invalid index $when: $n{cancels}, $n{kills}");
			is($n{"orphaned bytes $when"}, 0, "$name: no orphaned bytes $when");
		}
		is($n{'next call fails'}, 0, "$name: the next call works");
	}
	clean_by_hand();
}
verdict_ok($node, 'c', 'at the end', max_keys => 300);
$node->stop;
done_testing();
