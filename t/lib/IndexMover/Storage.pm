# IndexMover::Storage
#   Storage that fails: libraries of ours that are loaded before the server's own
#   calls (LD_PRELOAD), compiled from the .c files beside the tests.
#
#   writes_directly() or plan skip_all => 'no O_DIRECT here';
#   my $library = preload_library('io_faults');    # or the test file is skipped
#   { local $ENV{LD_PRELOAD} = $library; $node->restart; }
#   break_calls('write', $errno, $first, $times, $path);
#   ...
#   my $fired = mend_calls();
#   my $fired = mend_full_wal($node, $log);    # where the writes to pg_wal have failed
#   my $problem = start_with_file_system($node, $directory, '32m');
#
# What break_calls() takes is what t/io_faults.c explains.  The library reaches
# only servers that are started after preload_library().
package IndexMover::Storage;

use strict;
use warnings;

use Exporter 'import';
use Fcntl qw(O_CREAT O_RDWR);
use File::Basename qw(dirname);
use IndexMover::Processes;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(writes_directly preload_library break_calls calls_broken mend_calls mend_full_wal start_with_file_system);

# Whether files can be written past the page cache here, and in the background, as
# core's own test of debug_io_direct asks.
sub writes_directly
{
	my $flag = eval { Fcntl::O_DIRECT() };
	my $file = PostgreSQL::Test::Utils::tempdir() . '/direct';
	return 0 unless defined $flag && -e '/proc/sys/fs/aio-nr';
	sysopen(my $fh, $file, $flag | O_RDWR | O_CREAT) or return 0;
	close $fh;
	unlink $file;
	return 1;
}

# Compile t/$name.c; returns the library's path.  Skips the test file where that
# cannot be had.
sub preload_library
{
	my ($name) = @_;
	plan skip_all => "t/$name.c is for Linux" unless $^O eq 'linux';
	my $library = "$PostgreSQL::Test::Utils::tmp_check/$name.so";
	my $messages = '';
	IPC::Run::run(
		[ $ENV{CC} || 'cc', '-shared', '-fPIC', '-O1', '-o', $library, dirname(__FILE__) . "/../../$name.c", '-ldl' ],
		'>&', \$messages)
	  or plan skip_all => "cannot compile t/$name.c: $messages";
	$ENV{ uc $name } = "$PostgreSQL::Test::Utils::tmp_check/$name";
	return $library;
}

# Start a server for which the directory, which is made, is a file system of that size: in
# a mount namespace of its own, so that this needs no privileges.  With wal => 1, the server
# has been shut down, and its pg_wal is on that file system, too, beside a directory
# "tablespace".  Returns why it cannot; then the server is started without.
sub start_with_file_system
{
	my ($node, $directory, $size, %options) = @_;
	my @private = ('unshare', '--user', '--map-user=' . $>, '--map-group=' . (split / /, $))[0], '--keep-caps', '--mount');
	my $mount = 'mount -t tmpfs -o size="$3" small "$1" && chmod 700 "$1" && ';
	my ($mounted, $why);
	my $last = '';
	mkdir $directory;
	eval { $mounted = IPC::Run::run([ @private, 'mount', '-t', 'tmpfs', '-o', "size=$size", 'small', $directory ], '>&', \$why) };
	if (!$mounted)
	{
		$node->start;
		return $why || $@;
	}
	if ($options{wal})
	{
		# of the WAL, the server needs the file that ends with the checkpoint of the shutdown
		my ($control) = PostgreSQL::Test::Utils::run_command([ 'pg_controldata', $node->data_dir ]);
		($last) = $control =~ /^Latest checkpoint's REDO WAL file:\s+(\w+)$/m;
		$mount .= 'mkdir "$1/archive_status" "$1/summaries" "$1/tablespace" && cp -a "$PGDATA/pg_wal/$4" "$1" && ';
		$mount .= 'mount --bind "$1" "$PGDATA/pg_wal" && ';
	}
	# pg_ctl's children stay in the namespace
	local $ENV{PGDATA} = $node->data_dir;
	IPC::Run::run([ @private, 'sh', '-c', $mount . 'exec pg_ctl -w -s -l "$2" start', 'sh', $directory, $node->logfile, $size, $last ])
	  or die 'server does not start in a namespace';
	$node->_update_pid(1);
	return;
}

# From now on, calls fail.
sub break_calls
{
	my ($operation, $number, $first, $times, $path) = @_;
	unlink "$ENV{IO_FAULTS}.count", "$ENV{IO_FAULTS}.fired";
	PostgreSQL::Test::Utils::append_to_file($ENV{IO_FAULTS}, "$operation $number $first $times $path\n");
	return;
}

# How many have.
sub calls_broken { return -s "$ENV{IO_FAULTS}.fired" || 0; }

# No more of it; returns how many have failed.
sub mend_calls
{
	unlink $ENV{IO_FAULTS};
	return calls_broken();
}

# The same where pg_wal was full: the server panics, and again when it recovers, as
# long as there is no room.  If it is the startup process that cannot write, because
# the WAL ends in the middle of a record, the postmaster gives up; if it is the
# checkpointer, it tries again and again.  $log is how long the server's log was.
# The server is up then.
sub mend_full_wal
{
	my ($node, $log) = @_;
	my $start = time;
	my $twice = qr/(?:all server processes terminated; reinitializing.*){2}/s;
	my $gone;
	until (($gone = process_is_gone($node->{_pid})) || PostgreSQL::Test::Utils::slurp_file($node->logfile, $log) =~ $twice)
	{
		die 'recovery does not fail' if time - $start > $IndexMover::Test::TIMEOUT;
		usleep(20_000);
	}
	my $fired = mend_calls();
	if ($gone)
	{
		wait_until_down($node);
		$node->start;
	}
	else
	{
		wait_until_up($node);
	}
	return $fired;
}

1;
