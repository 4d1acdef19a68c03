# WAL segments of 1 MB, which a checkpoint removes as soon as the WAL is in the next
# one, and nothing but checkpoints: a copy keeps up all the same.
#
# Fault (storage): nothing but checkpoints, with WAL segments of 1 MB
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('small_segments', extra => ['--wal-segsize=1'],
	conf => "min_wal_size = 2MB\nmax_wal_size = 8MB\nlog_checkpoints = off\n");
sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(<<SQL);
CREATE TABLE small (i int, s text);
-- full pages: of empty space a copy writes no WAL
INSERT INTO small SELECT g, repeat(md5(g::text), 15) FROM generate_series(1, 50000) g;
CREATE INDEX small_s ON small (s) TABLESPACE regress_slow;
SQL

append_to_file($node->basedir . '/checkpoint.sql', "CHECKPOINT;\n");
append_to_file($node->basedir . '/write.sql', "\\set i random(1, 50000)\nUPDATE small SET s = repeat(md5(s), 15) WHERE i = :i;\n");
my ($checkpoints, $writes) = map
{
	my ($file, @options) = @$_;
	my $out = '';
	{ out => \$out, harness => IPC::Run::start(
		[ 'pgbench', '-n', '-c', '1', '-T', '900', @options, '-f', $node->basedir . "/$file.sql", $node->connstr('postgres') ],
		'>&', \$out, IPC::Run::timer($IndexMover::Test::TIMEOUT)) }
} [ 'checkpoint' ], [ 'write', '-R', '50' ];

my $now = sql('SELECT checkpoint_lsn FROM pg_control_checkpoint()');
poll_until($node, "SELECT checkpoint_lsn > '$now' FROM pg_control_checkpoint()", 't', 'checkpoints');
my $log = -s $node->logfile;
foreach my $n (1, 2)
{
	my $segment = sql('SELECT pg_walfile_name(pg_current_wal_lsn())');
	my $job = begin_job($node, 'small_s', elsewhere($node, 'small_s'), max_rate => '20MB');
	wait_for_job_end($node, $job);
	is(sql("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "moved, $n");
	is(sql("SELECT count(*) FROM pg_ls_waldir() WHERE name = '$segment'"), '0', "$n: WAL has been removed meanwhile");
}
ok(!$node->log_contains(qr/starting the copy/, $log), 'and no copy had to be started again');
foreach my $load ($checkpoints, $writes)
{
	ok($load->{harness}->pumpable, 'the load went on until the end') or diag ${ $load->{out} };
	# not INT: pgbench ignores that where we were started in the background
	$load->{harness}->signal('TERM');
	eval { $load->{harness}->finish };
}
all_right($node, 'small', 'at the end', max_keys => 200, no_metadata => 1, within => 5);

$node->stop;
done_testing();
