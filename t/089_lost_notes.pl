# What a thorough look has found in pages is said until the file is another one, or is whole again:
# on a standby replay makes it so, and nothing is healed there.  And how long a note is good goes by a
# clock that is never set back.
#
# Fault (storage): pages of an index are lost on a standby, and the primary writes them; pages are
#   lost while the clock is set back; whoever reads an index again, slowly, is canceled
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path);
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
my $clock = preload_library('clock');
my $faults = preload_library('io_faults');

my $dir = PostgreSQL::Test::Utils::tempdir();
make_path("$dir/primary", "$dir/standby");
my $node = new_node('primary', streaming => 1, conf => <<CONF);
shared_preload_libraries = 'index_mover'
shared_buffers = 1MB
checkpoint_timeout = 1h
autovacuum = off
CONF
# Have a note be old after so many milliseconds.
sub be_old_after
{
	my ($on, $ms) = @_;
	$on->append_conf('postgresql.conf', "index_mover.test_mutation = 'fresh-ms:$ms'\n");
	return;
}
sub value { my ($sql, $on) = @_; return ($on // $node)->safe_psql('postgres', $sql); }
sub found { return value("SELECT string_agg(object || ' ' || detail, ' ') FROM index_mover_check() WHERE kind = 'lost file'", @_); }
sub file { my ($index, $on) = @_; return ($on // $node)->data_dir . '/' . value("SELECT pg_relation_filepath('$index')"); }
sub lose_pages
{
	my ($path) = @_;
	open my $handle, '+<:raw', $path or die "$path: $!";
	seek $handle, 300 * 8192, 0;
	print $handle "\0" x (200 * 8192);
	close $handle or die $!;
	return;
}

value("CREATE TABLESPACE fast LOCATION '$dir/primary'");
my $oid = value("SELECT oid FROM pg_tablespace WHERE spcname = 'fast'");
value($_) foreach 'CREATE TABLE t (id int)', 'INSERT INTO t SELECT generate_series(1, 200000)',
  'CREATE INDEX t_id ON t (id) TABLESPACE fast', 'CREATE TABLE o AS SELECT * FROM t', 'CREATE INDEX o_id ON o (id)', 'VACUUM';

# ---- a standby -----------------------------------------------------------------------------------------
my $backup = $node->backup_dir . '/standby';
$node->run_log([ 'pg_basebackup', '-D', $backup, '-h', $node->host, '-p', $node->port, '-c', 'fast', '-X', 'stream', '--no-sync',
		"--tablespace-mapping=$dir/primary=$dir/standby" ]) or die 'pg_basebackup';
# core's module does not like the link
unlink "$backup/pg_tblspc/$oid" or die $!;
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'standby', has_streaming => 1);
symlink("$dir/standby", $standby->data_dir . "/pg_tblspc/$oid") or die $!;
lose_pages(file('t_id', $standby));
{
	local $ENV{LD_PRELOAD} = $faults;
	$standby->start;
}
my $noted = time;
like(found($standby), qr/^public\.t_id block \d+, to which block \d+ refers, is empty$/, 'a standby has lost pages');
like(found($standby), qr/^public\.t_id block \d+, to which block \d+ refers, is empty$/, 'the lost pages of a standby are told again');
# the first change of each page since a checkpoint logs its image
value($_) foreach 'CHECKPOINT', 'INSERT INTO t SELECT generate_series(1, 200000)';
$node->wait_for_catchup($standby);
# (no monitor reads it at each call)
like(found($standby), qr/^public\.t_id/, 'the primary writes all pages: what was found is said as long as it is fresh');
be_old_after($standby, 10_000);
$standby->reload;
wait_until('old', sub { time > $noted + 11 });
break_calls('slow', 5000, 1, 1_000_000, file('t_id', $standby) =~ s/.*(?=PG_)//r);
my $canceled = "SET statement_timeout = '1s'; SELECT * FROM index_mover_check()";
isnt($standby->psql('postgres', $canceled), 0, 'then it is read again, here in vain');
like(value("SET statement_timeout = '1s'; SELECT object FROM index_mover_check() WHERE kind = 'lost file'", $standby), qr/public\.t_id/,
	'the next call does not read the index again');
mend_calls();
be_old_after($standby, 0);
$standby->reload;
is(found($standby), '', 'the primary has written all pages: nothing is said any more');
is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id > 0', $standby), 400000,
	'the primary has written all pages: the index is whole');
$standby->stop;

# ---- a clock that is set back --------------------------------------------------------------------------
# The janitor reads all pages of a device that is not known.
$node->stop;
be_old_after($node, 0);
unlink glob("$dir/primary/index_mover.*") or die $!;
{
	local $ENV{LD_PRELOAD} = $clock;
	$node->start;
}
wait_until('settled', sub { slurp_file($node->data_dir . '/index_mover.evidence') =~ /^tablespace $oid \S+ \S+ \S+ 0 0 /m });
append_to_file($ENV{CLOCK}, '');
cmp_ok(value('SELECT extract(epoch FROM now())'), '<', time - 1800, 'the clock is set back');
lose_pages(file('t_id'));
# pages in memory are whole
value('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM o WHERE id > 0') foreach 1 .. 2;
like(found(), qr/^public\.t_id block \d+, to which block \d+ refers, is empty$/, 'the clock is set back: the loss of pages is found');
unlink $ENV{CLOCK};
done_testing();
