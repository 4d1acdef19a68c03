# Files that come to a device after a loss have numbers from before: a database is copied, or
# gets another tablespace.  They are not lost; what was there before is.  And servers that
# are copies, with healthy indexes: nothing of them is called lost.
#
# Fault (storage): a standby restarts while its tablespace is empty, or comes back without its
#   files, and databases are moved or copied there; a server is restored from a backup
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my @spaces = qw(empty used);
make_path("$dir/primary/$_") foreach @spaces;
my $node = new_node('primary', streaming => 1, conf => <<CONF);
shared_preload_libraries = 'index_mover'
wal_keep_size = 1GB
checkpoint_timeout = 1h
CONF

my %oid;
sub value { my ($sql, $on, $db) = @_; return ($on // $node)->safe_psql($db // 'postgres', $sql); }
sub evidence { return slurp_file("$_[0]/index_mover.evidence"); }

# The state file's verdict on a tablespace.
sub verdict { my ($on, $space) = @_; return verdict_on_record($on, $oid{$space}); }

sub settled
{
	my ($on) = @_;
	return wait_until('settled', sub { !grep { verdict($on, $_) ne 'same' } @spaces });
}
sub watched { my ($on) = @_; return wait_until_watched($on); }

value("CREATE TABLESPACE $_ LOCATION '$dir/primary/$_'") foreach @spaces;
$oid{$_} = value("SELECT oid FROM pg_tablespace WHERE spcname = '$_'") foreach @spaces;
value('CREATE TABLE t (id int PRIMARY KEY USING INDEX TABLESPACE used); INSERT INTO t SELECT generate_series(1, 9000)');

# databases with files that are older than what follows
my @databases = qw(moved moved_used source);
foreach my $database (@databases)
{
	value("CREATE DATABASE $database");
	value("CREATE EXTENSION index_mover CASCADE; CREATE TABLE d (id int PRIMARY KEY);
		INSERT INTO d SELECT generate_series(1, 9000)", $node, $database);
}
value("ALTER DATABASE source IS_TEMPLATE true");
# the counter of OIDs is known to 8192 only; numbers below are from before for certain
value("SELECT count(lo_create(0)) FROM generate_series(1, 1000)") foreach 1 .. 9;
value('CHECKPOINT');

sub place_of { my ($name, $space) = @_; return "$dir/$name/$space"; }
sub link_spaces
{
	my ($to, $name) = @_;
	foreach my $space (@spaces)
	{
		unlink "$to/pg_tblspc/$oid{$space}";
		symlink(place_of($name, $space), "$to/pg_tblspc/$oid{$space}") or die $!;
	}
	return;
}
sub make_copy
{
	my ($name, %how) = @_;
	my $backup = $node->backup_dir . "/$name";
	make_path("$dir/$name");
	my @mapping = map { "--tablespace-mapping=$dir/primary/$_=" . place_of($name, $_) } @spaces;
	my @options = ('-h', $node->host, '-p', $node->port, '-c', 'fast', '-X', 'stream', '--no-sync');
	$node->run_log([ 'pg_basebackup', '-D', $backup, @options, @mapping ]) or die 'pg_basebackup';
	# core's module does not like the links
	unlink "$backup/pg_tblspc/$oid{$_}" foreach @spaces;
	my $copy = PostgreSQL::Test::Cluster->new($name);
	$copy->init_from_backup($node, $name, has_streaming => $how{standby});
	link_spaces($copy->data_dir, $name);
	return $copy;
}

# ---- a standby with an empty tablespace, and one without files -----------------------------------
my $standby = make_copy('standby', standby => 1);
$standby->append_conf('postgresql.conf', 'ignore_invalid_pages = on');
$standby->start;
$node->wait_for_catchup($standby);
watched($standby);
$standby->restart;
watched($standby);
$standby->stop;
my $from = -s $standby->logfile;
# what is in its device is gone
rmtree(place_of('standby', 'used'));
make_path(place_of('standby', 'used'));
$standby->start;
isnt(verdict($standby, 'empty'), 'lost', 'a tablespace that was empty before: nothing is lost');
is(verdict($standby, 'used'), 'lost', 'the one whose files are gone is lost');
my $scans = "SELECT pg_stat_get_numscans('pg_class'::regclass)";
my $before = value($scans, $standby, 'source');
value('SHOW port; SELECT 1', $standby, 'source') foreach 1 .. 9;
cmp_ok(value($scans, $standby, 'source') - $before, '<', 5, 'a database without lost indexes: a single session reads all of pg_class');

# each of these brings files with numbers from before
value('ALTER DATABASE moved SET TABLESPACE empty');
value('ALTER DATABASE moved_used SET TABLESPACE used');
my $strategy = value("SELECT current_setting('server_version_num')::int >= 150000") eq 't';
foreach my $space (@spaces)
{
	value("CREATE DATABASE copied_$space TEMPLATE source TABLESPACE $space" . ($strategy ? ' STRATEGY file_copy' : ''));
	value("CREATE DATABASE logged_$space TEMPLATE source TABLESPACE $space");
	push @databases, "copied_$space", "logged_$space";
}
value('INSERT INTO d SELECT generate_series(10000, 10100)', $node, $_) foreach grep { $_ ne 'source' } @databases;
# the row of pg_class is a later one; the file is not
value('ALTER INDEX t_pkey SET (fillfactor = 80)');
# nor does the freezing of rows make them rows from before
value('VACUUM FREEZE pg_database');
value('VACUUM FREEZE pg_class', $node, $_) foreach @databases;
$node->wait_for_catchup($standby);
$node->stop;
$standby->promote;
watched($standby);
foreach my $database (@databases)
{
	is(value('SET enable_seqscan = off; SELECT count(*) FROM d WHERE id = 77', $standby, $database), 1,
		"promoted: $database: the right answer");
	like(value('SET enable_seqscan = off; EXPLAIN (COSTS off) SELECT * FROM d WHERE id = 77', $standby, $database), qr/Index/,
		"promoted: $database: its index is in use");
	is(value(join(' UNION ALL ', map { "SELECT name FROM heal_tablespace('$_', dry_run => true)" } @spaces), $standby, $database), '',
		"promoted: $database: nothing is lost");
	is(value("SELECT string_agg(kind, ' ') FROM index_mover_check() WHERE kind ~ 'lost'", $standby, $database), '',
		"promoted: $database: nor for index_mover_check()");
	isnt($standby->psql($database, 'INSERT INTO d VALUES (77)'), 0, "promoted: $database: no duplicate");
	is($standby->psql($database, 'INSERT INTO d VALUES (90000)'), 0, "promoted: $database: an insert works");
	is(value('SELECT count(*) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
		WHERE c.relnamespace = $$public$$::regnamespace AND pg_relation_size(c.oid) = 0', $standby, $database), 0,
		"promoted: $database: no file was emptied");
}
is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 77', $standby), 1, 'promoted: the lost index is not used');
is(value("SELECT name || ' ' || status FROM heal_tablespace('used')", $standby), 't_pkey moved', 'and healed');
unlike(slurp_file($standby->logfile, $from), qr/files of tablespace $oid{empty} are lost/, 'the log does not call the empty one lost');
$standby->restart;
settled($standby);
$standby->stop;

# ---- healthy indexes on copies of the server -----------------------------------------------------
$node->start;
value('CREATE EXTENSION bloom');
my %methods = (
	btree => [ 'i int', 'g', 'i' ],
	hash => [ 'i int', 'g', 'i' ],
	gin => [ 'i int[]', 'ARRAY[g, g + 1]', 'i' ],
	gist => [ 'i int4range', 'int4range(g, g + 1)', 'i' ],
	spgist => [ 'i point', 'point(g, g)', 'i' ],
	brin => [ 'i int', 'g', 'i' ],
	bloom => [ 'i int', 'g', 'i' ]);
my @rows = (0, 1, 100, 700, 3000);
@rows = map { ($_ % 7)**4 + $_ * 37 } 0 .. 28 if faults('5 of 29 healthy indexes of each access method are made');
foreach my $am (sort keys %methods)
{
	my ($column, $value, $indexed) = @{ $methods{$am} };
	value(join '', map {
			my ($n, $rows) = ($_, $rows[$_]);
			my $table = "healthy_${am}_$n";
			"CREATE TABLE $table ($column); INSERT INTO $table SELECT $value FROM generate_series(1, $rows) g;
			 CREATE INDEX ${table}_i ON $table USING $am ($indexed) TABLESPACE used;"
			  . ($n % 2 ? "DELETE FROM $table; INSERT INTO $table SELECT $value FROM generate_series(50, $rows + 60) g;" : '')
	} 0 .. $#rows);
}
sub is_whole
{
	my ($on, $name) = @_;
	settled($on);
	is(value(join(' UNION ALL ', map { "SELECT name FROM heal_tablespace('$_', dry_run => true)" } @spaces), $on), '',
		"$name: nothing is lost");
	is(value("SELECT count(*) FROM index_mover_history", $on), 0, "$name: nothing was rebuilt");
	unlike(slurp_file($on->logfile), qr/files of tablespace \d+ are lost/, "$name: nor does the log say so");
	return;
}
my $backup = make_copy('backup', standby => 0);
$backup->append_conf('postgresql.conf', 'index_mover.heal_at_start = on');
$backup->start;
is(verdict($backup, 'used'), 'unknown', 'a base backup: unknown at first');
is_whole($backup, 'a base backup');
$backup->stop;

# all is copied by a program, after a stop and after a crash
foreach my $end ('fast', 'immediate')
{
	my $copy = PostgreSQL::Test::Cluster->new("copied_$end");
	value('INSERT INTO healthy_btree_2 SELECT generate_series(1, 300); INSERT INTO healthy_hash_2 SELECT generate_series(1, 300)');
	value('INSERT INTO healthy_gin_2 SELECT ARRAY[g] FROM generate_series(1, 300) g');
	$node->stop($end);
	make_path("$dir/copied_$end");
	system("cp -a '$dir/primary/$_' '" . place_of("copied_$end", $_) . "'") == 0 or die foreach @spaces;
	make_path($copy->basedir);
	rmtree($copy->data_dir);
	system('cp', '-a', $node->data_dir, $copy->data_dir) == 0 or die;
	unlink $copy->data_dir . '/postmaster.pid';
	link_spaces($copy->data_dir, "copied_$end");
	$copy->append_conf('postgresql.conf', 'port = ' . $copy->port);
	$copy->append_conf('postgresql.conf', 'index_mover.heal_at_start = on');
	$copy->start;
	is_whole($copy, "a copy, $end");
	$copy->stop;
	$node->start;
	watched($node);
}
is_whole($node, 'the original');

# ---- a base backup during which a tablespace gets its first files --------------------------------
# They are not in the backup; recovery begins before they were made, and makes them whole.
# Meanwhile a checkpoint has moved pg_control beyond that.
{
	my $name = 'first_files';
	my $copy = PostgreSQL::Test::Cluster->new($name);
	my $to = $copy->data_dir;
	make_path($copy->basedir, place_of($name, 'empty'));
	value('DROP DATABASE moved');
	value("DROP DATABASE ${_}_empty") foreach qw(copied logged);
	is_deeply([ glob("$dir/primary/empty/PG_*/*") ], [], 'the tablespace is empty');
	my $label = "$dir/backup_label";
	my $script = "SELECT pg_backup_start('first', true);\n"
	  . "\\! cp -a " . $node->data_dir . " $to\n"
	  . "\\! cp -a $dir/primary/used " . place_of($name, 'used') . "\n"
	  . "\\! mkdir " . place_of($name, 'empty') . "/\$(basename $dir/primary/empty/PG_*)\n"
	  . "CREATE TABLE first (i int);\nINSERT INTO first SELECT generate_series(1, 5000);\n"
	  . "CREATE INDEX first_i ON first (i) TABLESPACE empty;\nCHECKPOINT;\nINSERT INTO first VALUES (7000);\n"
	  . "\\! cp -a " . $node->data_dir . "/global/pg_control $to/global/pg_control\n"
	  . "SELECT labelfile FROM pg_backup_stop() \\g $label\n";
	value($script);
	rmtree("$to/pg_wal");
	system('cp', '-a', $node->data_dir . '/pg_wal', "$to/pg_wal") == 0 or die;
	unlink "$to/postmaster.pid", "$to/postmaster.opts";
	rename $label, "$to/backup_label" or die $!;
	link_spaces($to, $name);
	$copy->append_conf('postgresql.conf', 'port = ' . $copy->port);
	$copy->start;
	isnt(verdict($copy, 'empty'), 'lost', 'first files during a backup: not lost');
	my $query = 'SELECT count(*) FROM first WHERE i = 7000';
	is(value("SET enable_seqscan = off; $query", $copy), 1, 'first files during a backup: the answer is right');
	like(value("SET enable_seqscan = off; EXPLAIN $query", $copy), qr/first_i/, 'first files during a backup: by the index');
	is_whole($copy, 'first files during a backup');
	$copy->stop;
}
done_testing();
