# The power fails: every process is gone at once, and every write to a relation
# file that was not synced is lost.  What a committed swap promises must be on
# disk, and the old file as long as there was none.
#
# Fault (storage): power failure: all that was not synced is lost; also of what a copy that goes on has recorded (17)
# Fault (replication): `fsync = off`: in all tests but these (also 032)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();
my $library = preload_library('lost_writes');
mkdir $ENV{LOST_WRITES};

my $node = new_node('power',
	conf => "fsync = on\ncheckpoint_timeout = 1h\nmax_wal_size = 1GB\nshared_buffers = 8MB\nrestart_after_crash = off");
my $asserts = $node->safe_psql('postgres', 'SHOW debug_assertions') eq 'on';
$node->safe_psql('postgres', <<SQL);
CREATE TABLE st (i int, s text) WITH (fillfactor = 80);
INSERT INTO st SELECT g, md5(g::text) FROM generate_series(1, 40000) g;
CREATE INDEX st_s ON st (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('st'), oracle.remember_metadata('st');
CREATE TABLE filler (i int, s text);
SQL

# Write so much that the buffers cannot keep it: so something has been written, the
# index's last blocks too, and not been synced.
sub write_much
{
	$node->safe_psql('postgres', "INSERT INTO filler SELECT g, repeat('x', 200) FROM generate_series(1, 60000) g");
	return;
}

# Put back what was not synced; returns the number of files that lost something.
sub restore_lost
{
	my $n = 0;
	foreach my $list (glob("$ENV{LOST_WRITES}/*.undo"))
	{
		open(my $fh, '<:raw', $list) or die $!;
		my $head = <$fh>;
		my ($path, $size) = defined $head ? $head =~ /^(.*) (\d+)$/ : ();
		my @old;
		while (defined $path && defined(my $line = <$fh>))
		{
			my ($offset, $length) = $line =~ /^(\d+) (\d+)$/ or die "$list: $line";
			# the last entry may be incomplete: then its write was not done
			read($fh, my $bytes, $length) == $length or last;
			push @old, [ $offset, $bytes ];
		}
		close $fh;
		my ($inode) = $list =~ /(\d+)\.undo$/;
		unlink $list;
		# the file may be gone, and its name another's
		next unless defined $path && -f $path && (stat $path)[1] == $inode;
		open(my $file, '+<:raw', $path) or die "$path: $!";
		foreach (reverse @old)
		{
			seek($file, $_->[0], 0);
			print $file $_->[1];
		}
		close $file;
		truncate($path, $size) or die $!;
		$n++;
	}
	return $n;
}

# Start with the library; nothing is lost yet.
sub start_with_library
{
	local $ENV{LD_PRELOAD} = $library;
	unlink glob("$ENV{LOST_WRITES}/*.undo");
	$node->start;
	return;
}

sub power_failure
{
	my ($name) = @_;
	my $postmaster = $node->{_pid};
	if ($postmaster)
	{
		my @all = map { chomp; $_ } `pgrep -P $postmaster`;
		kill 'KILL', $postmaster, @all;
		my $start = time;
		usleep(20_000) while time - $start < 60 && grep { !process_is_gone($_) } @all;
		wait_until_down($node);
	}
	my $files = restore_lost();
	cmp_ok($files, '>=', 1, "$name: $files files have lost something");
	unlink $node->data_dir . '/postmaster.pid';
	return;
}

# Start a move with two checkpoints on its way: when its file has just been made
# (since 15.5 the checkpoint after that syncs it), and at $checkpoint.
sub with_checkpoints
{
	my ($checkpoint, $move, @then) = @_;
	my $second = IndexMover::Session->new($node);
	$second->run('SELECT pg_advisory_lock(0, 5960)');
	my $call = held_at($node, 'copy-created', $move, then => join(',', "$checkpoint:wait2", @then));
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $log = -s $node->logfile;
	let_go($call);
	$node->wait_for_log(qr/test point "$checkpoint": waiting/, $log);
	$node->safe_psql('postgres', 'UPDATE st SET s = md5(s) WHERE i % 500 = 3; CHECKPOINT');
	write_much();
	$second->end;
	return $call;
}

foreach my $case (
	picked { "@$_" =~ /^(?:swapped copy-synced| copy-end)$/ } 'power failures',
	# where the power fails, and where there is a checkpoint before
	[ 'copy-synced', '' ], [ 'swap-before-commit', 'copy-synced' ], [ 'swapped', '' ], [ 'swapped', 'copy-synced' ],
	[ 'swapped', 'copy-half' ], [ 'old-file-dropped', 'copy-synced' ], [ '', 'copy-synced' ], [ '', 'copy-end' ], [ '', 'swapped' ])
{
	my ($point, $checkpoint) = @$case;
	my $name = ($point ? "at $point" : 'after the end') . ($checkpoint ? ", checkpoint at $checkpoint" : '');
	$node->stop if $node->{_pid};
	start_with_library();
	my $from = tablespace_of_index($node, 'st_s');
	my $to = other_place($from);
	$node->safe_psql('postgres',
		'TRUNCATE filler; UPDATE st SET s = md5(s) WHERE i % 500 = 1; CHECKPOINT; UPDATE st SET s = md5(s) WHERE i % 500 = 2');
	my $call;
	my $move = "SELECT status FROM move_indexes('st_s', '$to', method => 'copy')";
	if ($checkpoint)
	{
		$call = with_checkpoints($checkpoint, $move, $point ? "$point:kill" : ());
	}
	else
	{
		$call = held_at($node, $point, $move);
		write_much();
	}
	unless ($point)
	{
		is((finish_call($call))[1], "moved\n", "$name: moved");
		write_much();
	}
	# without a restart after a crash, a killed worker takes all the others along
	wait_until_down($node) if $checkpoint && $point;
	power_failure($name);
	eval { finish_call($call) } if $point;
	$node->start;
	set_test_point($node, '');
	is(tablespace_of_index($node, 'st_s'), $point =~ /^copy|^swap-/ ? $from : $to, "$name: where the index is");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	survived_ok($node, 'st', $name, sprintf("SELECT status FROM move_indexes('st_s', '%s', method => 'copy')",
		$from eq tablespace_of_index($node, 'st_s') ? $to : $from),
		max_keys => 2000, restarted => 1, count => 'power failures beside a copy');
}

# A copy that leaves out the sync is noticed.
SKIP:
{
	$node->stop;
	# where the catch-up asserts that there was one
	skip 'this server has assertions', 3 if $asserts;
	start_with_library();
	my $from = tablespace_of_index($node, 'st_s');
	my $to = other_place($from);
	set_tests($node, test_mutation => 'sync');
	my $call = with_checkpoints('copy-synced', "SELECT status FROM move_indexes('st_s', '$to', method => 'copy')");
	is((finish_call($call))[1], "moved\n", 'without the sync: moved');
	power_failure('without the sync');
	$node->start;
	unlike($node->safe_psql('postgres', "SELECT oracle.verdict('st')"), qr/^1 right/,
		'without the sync: the index is damaged, and it is noticed');
}

# A copy that goes on (t/117_exact_resume.pl).  A round has written blocks again below the
# last record, and then a tail makes it record again: that these are durable, too.  The tail
# is in another segment of the file.
if (faults() && `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 17)
{
	$node->stop if $node->{_pid};
	$node->append_conf('postgresql.conf', "summarize_wal = on\nindex_mover.resumable_size = 4MB\nmax_wal_size = 8GB");
	$node->start;
	set_test_point($node, 'copy-end:wait,resume-recorded:258:wait2');
	# a row in each block
	my $rows = "INSERT INTO large SELECT g, repeat(md5(g::text), 26) FROM generate_series";
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE large (i int, s text) WITH (fillfactor = 10) TABLESPACE regress_slow;
ALTER TABLE large ALTER s SET STORAGE plain;
$rows(1, 131072 + 600) g;
SQL
	is($node->safe_psql('postgres', "SELECT pg_relation_size('large') / 8192"), 131072 + 600, 'the table is larger than a segment');
	$node->stop;
	start_with_library();
	my @holders = map { IndexMover::Session->new($node) } 0, 1;
	$holders[0]->run('SELECT pg_advisory_lock(0, 5959)');
	$holders[1]->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_table('large', 'regress_fast', wait => false)");
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	# (the checkpoints keep what has changed before out of the summaries that will be read)
	$node->safe_psql('postgres', "UPDATE large SET i = -i WHERE i BETWEEN 10 AND 1010; $rows(200001, 200700) g; CHECKPOINT");
	$holders[0]->end;
	$node->wait_for_log(qr/test point "resume-recorded": waiting/, $log);
	$node->safe_psql('postgres', 'CHECKPOINT');
	write_much();
	power_failure('a copy that goes on');
	$node->start;
	set_test_point($node, '');
	my $rest = $node->safe_psql('postgres', "SELECT resume_move($job)");
	wait_for_job_end($node, $rest);
	like($node->safe_psql('postgres', "SELECT status, message FROM index_mover_history WHERE job = $rest AND kind = 'table'"),
		qr/^moved\|.*went on where job $job had ended, with \d+ MB of which \d+ (?:bytes|kB) had/,
		'it goes on, and is equal to the original');
}

$node->stop;
done_testing();
