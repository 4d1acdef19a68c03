# Copies of lost files: as a template of CREATE DATABASE, with ALTER DATABASE SET TABLESPACE, in a
# copy of the data directory.  And a recovery that single-user mode does, as pg_rewind has it do.
#
# Fault (storage): a device that was away in a crash comes back with whole, old files, and its database
#   is a template, or gets another tablespace, before they are empty; the data directory is copied without a
#   backup; postgres --single recovers without the device; a directory to be copied cannot be read to its end
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Storage;
use IndexMover::Test;
use POSIX qw(EIO);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
my $faults = preload_library('io_faults');

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($node, $location, $oid) = node_with_device('copied');
sub value { my ($sql, $database) = @_; return $node->safe_psql($database // 'postgres', $sql); }

value($_) foreach 'CREATE DATABASE source', 'CREATE DATABASE rebuilt', 'CREATE DATABASE there TABLESPACE fast';
foreach my $database (qw(postgres source rebuilt))
{
	value($_, $database) foreach 'CREATE TABLE t (id int)', 'INSERT INTO t SELECT generate_series(1, 5000)',
	  'CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast';
}
my $databases = 'postgres source';
# (its table is there, too, and is never emptied)
value('CREATE DATABASE uncommitted');
value('CREATE TABLE t (id int) TABLESPACE fast; INSERT INTO t SELECT generate_series(1, 5000)', 'uncommitted');
value("BEGIN; CREATE INDEX t_id ON t (id) TABLESPACE fast; PREPARE TRANSACTION 'made'", 'uncommitted');

sub verdict { return verdict_on_record($node, $oid); }
sub settings { my ($text) = @_; $node->append_conf('postgresql.conf', $text); return; }

# A crash after changes, with the device away.
sub crash
{
	value('CHECKPOINT');
	value('INSERT INTO t SELECT max(id) + 1 FROM t', $_) foreach split / /, $databases;
	$node->stop('immediate');
	rename $location, "$location.away" or die $!;
	make_path($location);
	return;
}
sub come_back
{
	rmtree($location);
	rename "$location.away", $location or die $!;
	return;
}

# (found in the table, not in the index)
sub newest { my ($server, $database) = @_; return $server->safe_psql($database, 'SELECT id FROM t ORDER BY ctid DESC LIMIT 1'); }
sub look_up { return 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = ' . newest(@_); }
sub insert { return 'INSERT INTO t VALUES (' . newest(@_) . ')'; }

sub right_ok
{
	my ($server, $database, $name) = @_;
	is($server->safe_psql($database, look_up($server, $database)), 1, "$name: the right answer");
	isnt($server->psql($database, insert($server, $database)), 0, "$name: no duplicate");
	return;
}

# ---- databases that are copied -------------------------------------------------------------------
crash();
settings("index_mover.test_mutation = 'keep-lost'\n");
$node->start;
wait_for_no_worker($node);
$node->stop;
come_back();
{
	local $ENV{LD_PRELOAD} = $faults;
	$node->start;
}
my ($rc, undef, $err) = $node->psql('postgres', '\set VERBOSITY verbose' . "\nCREATE DATABASE copied TEMPLATE source");
like($err, qr/55000: .*cannot copy database "source".*"fast".*HINT:  Try again in a minute/s,
	'files of the template are not empty: no copy');
($rc, undef, $err) = $node->psql('postgres', '\set VERBOSITY verbose' . "\nALTER DATABASE there SET TABLESPACE pg_default");
like($err, qr/55000: .*cannot copy database "there"/s, 'nor of those of a database that gets another tablespace');
# (other processes read the directory above, too)
break_calls('readdir', EIO, 1, 1, glob("$location/PG_*") . '/' . value("SELECT oid FROM pg_database WHERE datname = 'source'"));
(undef, undef, $err) = $node->psql('postgres', 'CREATE DATABASE copied TEMPLATE source');
is(mend_calls(), 1, 'a directory to be copied cannot be read');
like($err, qr/could not read directory ".*": Input/, 'a directory that cannot be read: no copy');
value('CREATE DATABASE other TEMPLATE template0');
pass('a template without files there is copied');
value('CREATE DATABASE copied TEMPLATE source') if $rc == 0;
# (its lost file is removed; and the mutation has no process note that)
value('REINDEX INDEX t_id', 'rebuilt');
is($node->psql('postgres', 'CREATE DATABASE rebuilt_too TEMPLATE rebuilt'), 0, 'so is one whose lost index was rebuilt');
value("DROP DATABASE $_") foreach qw(rebuilt_too rebuilt);
settings("index_mover.test_mutation = ''\n");
$node->reload;
value('SELECT 1', 'source');
wait_until('copied', sub { $node->psql('postgres', 'CREATE DATABASE copied TEMPLATE source') == 0 });
right_ok($node, 'source', 'source');
# (its files are new, and so not lost; heal_tablespace() finds that they are empty)
isnt($node->psql('copied', $_), 0, 'copied: no answer, and no duplicate') foreach look_up($node, 'source'), insert($node, 'source');
my $lost = value("SELECT count(*) FROM index_mover_check() WHERE kind = 'lost device'");
is($lost, 1, 'the device has lost files');

# ---- a lost index that is not committed when the janitor comes, and a database that is closed then ----
settings("index_mover.test_mutation = 'empty-again:1000'\nlog_min_messages = debug1\n");
my $from = -s $node->logfile;
$node->restart;
my $all = value('SELECT count(*) FROM pg_database');
$node->wait_for_log(qr/(?:unregistering background worker "index_mover emptying".*?){$all}/s, $from);
value("ROLLBACK PREPARED 'made'", 'uncommitted');
value('ALTER DATABASE uncommitted ALLOW_CONNECTIONS false');
wait_until('copied', sub { $node->psql('postgres', 'CREATE DATABASE committed TEMPLATE uncommitted') == 0 });
pass('it was not committed when the janitor came: it comes again, though no client can connect');
# (nothing is lost since the copy was made, and no round of the janitor begins)
value('ALTER DATABASE committed ALLOW_CONNECTIONS false');
wait_until('copied', sub { $node->psql('postgres', 'CREATE DATABASE of_copy TEMPLATE committed') == 0 });
value('ALTER DATABASE of_copy ALLOW_CONNECTIONS false');
my $once_more = 'CREATE DATABASE of_second TEMPLATE of_copy';
isnt($node->psql('postgres', $once_more), 0, 'a copy that accepts no connections may have lost files');
wait_until('copied', sub { $node->psql('postgres', $once_more) == 0 });
pass('a copy that may have lost files is copied once a worker has come, within a minute');
value("DROP DATABASE $_") foreach qw(of_second of_copy committed uncommitted);
settings("log_min_messages = warning\n");

# ---- the data directory is copied, without a backup ------------------------------------------------
settings("index_mover.test_mutation = 'keep-lost'\n");
value('REINDEX INDEX t_id', $_) foreach qw(postgres source);
crash();
$node->start;
wait_for_no_worker($node);
$node->stop;
come_back();
my $data = $node->backup_dir . '/cold';
system("cp -a '" . $node->data_dir . "' '$data' && cp -a '$location' '$dir/cold'") == 0 or die;
unlink "$data/pg_tblspc/$oid" or die $!;
my $cold = PostgreSQL::Test::Cluster->new('cold');
$cold->init_from_backup($node, 'cold');
symlink("$dir/cold", $cold->data_dir . "/pg_tblspc/$oid") or die $!;
unlink $cold->data_dir . '/postmaster.pid';
$cold->append_conf('postgresql.conf', "index_mover.test_mutation = ''\n");
$cold->start;
right_ok($cold, 'postgres', 'a cold copy');
$cold->stop;
settings("index_mover.test_mutation = ''\n");
$node->start;
right_ok($node, 'postgres', 'its origin');

# ---- single-user mode recovers -------------------------------------------------------------------
value('REINDEX INDEX t_id', $_) foreach qw(postgres source);
value("DROP DATABASE $_") foreach qw(copied there);
$node->restart;
wait_until('settled', sub { verdict() eq 'same' });
wait_until('watched', sub { -e $node->data_dir . '/pg_snapshots/index_mover.running' });
crash();
my $postgres = $node->config_data('--bindir') . '/postgres';
my $answer = `$postgres --single -F -D '@{[ $node->data_dir ]}' template1 < /dev/null 2>&1`;
is($?, 0, 'postgres --single recovers without the device') or diag($answer);
come_back();
$node->start;
is(verdict(), 'lost', 'its device is back: lost');
right_ok($node, 'postgres', 'recovered in single-user mode');
is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved', 'healed');
done_testing();
