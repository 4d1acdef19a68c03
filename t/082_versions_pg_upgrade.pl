# pg_upgrade from an older version: indexes, history and settings come along,
# what crashed moves have left behind, if they have, stays in the old cluster, and
# moves work.  So does each value of TOAST, wherever a move of its table was ended:
# pg_upgrade takes for granted that a TOAST table is where its table is.
#
# INDEX_MOVER_OLD_BINDIR names the older version's bin directory; the extension
# must be installed there, too, for faults within a move with pause points.
#
# Fault (replication): pg_upgrade, with leftovers and without; after a move of a table ended
#   within its swap, with each of `--copy`, `--link` (across file systems, too) and `--swap`
use strict;
use warnings;

use File::Temp;
use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old_bin = $ENV{INDEX_MOVER_OLD_BINDIR}
  or plan skip_all => 'INDEX_MOVER_OLD_BINDIR does not name an older version';
my ($old_version) = `$old_bin/pg_config --version` =~ /(\d+)/;
my ($version) = `pg_config --version` =~ /(\d+)/;
# (to try one of them)
my $only = $ENV{ONLY} || '.';
cmp_ok($old_version, '<', $version, "from $old_version to $version");
chomp(my $old_share = `$old_bin/pg_config --sharedir`);
BAIL_OUT("index_mover is not installed for $old_bin") unless -f "$old_share/extension/index_mover.control";

chomp(my $old_lib = `$old_bin/pg_config --pkglibdir`);
my $has_points = slurp_file("$old_lib/index_mover.so") =~ /index_mover\.test/;
note 'no pause points in the older version: no faults within a move' unless $has_points;

# ---- tables with TOAST, in the old cluster ------------------------------------------
# Each is moved, and the move ends in some way at a point; where the table is then, it is
# with its TOAST table.  [ how, point ]
my @ends = (
	[ 'moved', '' ], [ 'mended', '' ],
	map { my $how = $_; map { [ $how,
		$_ ] } qw(copy-half:2 copy-synced:3 swap-file-locked:2 swap-file-locked:3 swap-copied swap-file-set:1 swap-file-set:2
			swap-before-commit swapped) } 'kill', 'cancel');
@ends = grep { $_->[1] eq '' } @ends unless $has_points;

sub make_toasted
{
	my ($old) = @_;
	foreach my $n (0 .. $#ends)
	{
		$old->safe_psql('postgres', <<SQL);
CREATE TABLE toasted$n (id int PRIMARY KEY, big text, digest text) TABLESPACE regress_slow;
ALTER TABLE toasted$n ALTER big SET STORAGE external;
INSERT INTO toasted$n SELECT g, repeat(md5(g::text), 100), md5(repeat(md5(g::text), 100)) FROM generate_series(1, 300) g;
SQL
		my ($how, $point) = @{ $ends[$n] };
		my $move = "SELECT FROM move_table('toasted$n', 'regress_fast')";
		if ($how eq 'mended')
		{
			$old->safe_psql('postgres', 'CREATE TABLE rows (LIKE toasted1 INCLUDING STORAGE); INSERT INTO rows TABLE toasted1');
			$old->safe_psql('postgres', q{CALL oracle.mix('toasted1', 'regress_slow', 'regress_fast', 'pg_default')});
			$old->safe_psql('postgres', 'INSERT INTO toasted1 TABLE rows; DROP TABLE rows');
		}
		if ($how eq 'kill')
		{
			set_tests($old, test_point => "$point:kill");
			$old->psql('postgres', $move);
			wait_until_up($old);
		}
		elsif ($how eq 'cancel')
		{
			my $call = held_at($old, $point, $move);
			$old->safe_psql('postgres', "SELECT pg_cancel_backend($call->{worker})");
			let_go($call);
			finish_call($call);
		}
		else
		{
			$old->safe_psql('postgres', $move);
		}
		set_tests($old) if $has_points;
		wait_for_no_worker($old);
		# (so that nothing is done by the next one that would be done by this one's end)
		my $place = $how =~ /moved|mended/ || $point eq 'swapped' ? 'regress_fast' : 'regress_slow';
		is(places_of_table($old, "toasted$n"), all_at($place), "$how $point: where the table is");
	}
	return;
}

sub toasted_ok
{
	my ($new, $name) = @_;
	my $wrong = '';
	foreach my $n (0 .. $#ends)
	{
		my ($rc, $out, $err) = $new->psql('postgres', <<SQL);
SELECT count(*) FILTER (WHERE md5(big) = digest) FROM toasted$n;
SET enable_seqscan = off; SELECT big = repeat(md5('77'), 100) FROM toasted$n WHERE id = 77;
SELECT count(*) FROM oracle.verify_heapam('toasted$n', check_toast => true);
SQL
		$wrong .= "@{$ends[$n]}: $out $err\n" if "$rc $out" ne "0 300\nt\n0";
	}
	return is($wrong, '', "$name: all values of " . @ends . ' tables with TOAST');
}

# ---- each mode ------------------------------------------------------------------------
# Whether crashed moves have left something behind; "across": a tablespace is on another
# file system.  With --swap, directories are moved: what is left behind goes along.
my $other_file_system = -d '/dev/shm' && -w '/dev/shm' && (stat '/dev/shm')[0] != (stat PostgreSQL::Test::Utils::tempdir())[0];
my @modes = ([ 'copy', 1 ], [ 'link', 1 ], [ 'link', 0 ], [ 'link', 0, 'across file systems' ], [ 'swap', 0 ]);
foreach my $case (@modes)
{
	my ($mode, $leftovers, $across) = @$case;
	my $name = $mode . ($across ? ", $across" : $leftovers ? ', with leftovers' : ', without leftovers');
	note("left out: pg_upgrade --$name: /dev/shm is no other file system"), next if $across && !$other_file_system;
	note("left out: pg_upgrade --$name: came with PostgreSQL 18"), next if $mode eq 'swap' && $version < 18;
	next if $name !~ /$only/;
	(my $dir = $name) =~ s/\W+/_/g;
	# pg_upgrade knows no tablespaces in place; and old and new need the same
	# names for superuser and databases, and no checksums or both.
	my $old = PostgreSQL::Test::Cluster->new("old_$dir", install_path => $old_bin =~ s{/bin/?$}{}r);
	$old->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
	$old->append_conf('postgresql.conf',
		"wal_level = replica\nautovacuum = off\nrestart_after_crash = on\nindex_mover.min_free_space = 0\n");
	$old->start;
	my %location = (regress_slow => PostgreSQL::Test::Utils::tempdir(),
		regress_fast => $across ? File::Temp::tempdir(DIR => '/dev/shm', CLEANUP => 1) : PostgreSQL::Test::Utils::tempdir());
	$old->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION '$location{$_}'") foreach sort keys %location;
	setup_database($old, 'postgres');
	$old->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_mover;
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO regress_mover;
ALTER DATABASE postgres SET index_mover.max_rate = '777MB';
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g FROM generate_series(1, 20000) g;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_stays ON t USING gin ((ARRAY[v % 100]));
SQL
	$old->safe_psql('postgres', "SELECT move_indexes('t_pkey', 'regress_fast', 'copy')");
	$old->safe_psql('postgres', "SELECT move_indexes('t_v', 'regress_fast', 'rebuild')");
	make_toasted($old);
	toasted_ok($old, "$name, before");
	$old->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($old);
	leave_behind($old, 'postgres') if $leftovers;
	is($old->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup(dry_run => true)'), $leftovers ? '2' : '0',
		"$name: " . ($leftovers ? 'an invalid index and a file are left behind' : 'nothing is left behind'));
	# rows that come and go, so that not all of them are where they were inserted
	$old->safe_psql('postgres',
		"SELECT oracle.remember_keys('t'); DELETE FROM t WHERE id % 7 = 0; UPDATE t SET v = v + 1 WHERE id % 5 = 0; VACUUM t");
	my $history = "SELECT job, name, status, to_tablespace, size_after FROM index_mover_history ORDER BY job, name";
	my $before = $old->safe_psql('postgres', $history);
	$old->stop;

	my $new = PostgreSQL::Test::Cluster->new("new_$dir");
	my @checksums = $version >= 18 ? ('--no-data-checksums') : ();
	$new->init(extra => [ '--no-locale', '--encoding=UTF8', @checksums ]);
	$new->append_conf('postgresql.conf',
		"wal_level = replica\nautovacuum = off\nmax_worker_processes = 8\nindex_mover.min_free_space = 0\n");
	chomp(my $new_bin = `pg_config --bindir`);
	# (it writes its sockets to the working directory, whose name must be short)
	chdir(PostgreSQL::Test::Utils::tempdir_short());
	command_ok(
		[
			'pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old_bin, '-B', $new_bin,
			'-p', $old->port, '-P', $new->port, "--$mode"
		],
		"$name: pg_upgrade");
	# what a user does then; it removes the old cluster's files from the tablespaces, too
	command_ok([ 'sh', './delete_old_cluster.sh' ], "$name: the old cluster is deleted");
	$new->start;

	is(tablespace_of_index($new, 't'), "t_pkey: regress_fast\nt_stays: default\nt_v: regress_fast",
		"$name: the indexes are where they were");
	is($new->safe_psql('postgres', $history), $before, "$name: the history came along");
	is($new->safe_psql('postgres',
		"SELECT string_agg(name, ' ' ORDER BY name) FROM index_mover_history WHERE status = 'interrupted' AND name LIKE 'behind%'"),
		$leftovers ? 'behind_copy_i behind_rebuild_i' : '', "$name: what was killed is interrupted");
	is($new->safe_psql('postgres', 'SHOW index_mover.max_rate'), '777MB', "$name: settings of the database came along");
	is($new->safe_psql('postgres',
		"SELECT has_function_privilege('regress_mover', 'move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb)', "
			. "'EXECUTE')"),
		't', "$name: privileges came along");
	is($new->safe_psql('postgres', 'SELECT count(*) FROM pg_index WHERE NOT indisvalid'), '0',
		"$name: the invalid index stayed in the old cluster");
	is($new->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), '0', "$name: there is nothing to clean up");

	files_ok($new, "$name: after pg_upgrade");
	toasted_ok($new, $name);
	verdict_ok($new, 't', "$name: after pg_upgrade");
	$new->safe_psql('postgres', "SELECT oracle.remember_metadata('t')");

	is($new->safe_psql('postgres',
		"SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM move_indexes('t', 'regress_slow', 'copy')"),
		't_pkey moved, t_stays moved, t_v moved', "$name: and moves work");
	is($new->safe_psql('postgres', "SELECT string_agg(DISTINCT status, ',') FROM move_table('toasted$_', 'pg_default')"), 'moved',
		"$name: and of toasted$_")
	  foreach 0 .. $#ends;
	toasted_ok($new, "$name, moved");
	# (the old cluster's rows of the ledger came along, but are not believed here)
	files_ok($new, "$name: after moves");
	metadata_ok($new, 't', "$name: after moves");
	verdict_ok($new, 't', "$name: after moves");
	leftovers_ok($new, "$name: after moves", within => 5) unless $leftovers;
	if ($leftovers)
	{
		my $job = $new->safe_psql('postgres', "SELECT job FROM index_mover_history WHERE name = 'behind_copy_i' ORDER BY job LIMIT 1");
		$new->safe_psql('postgres', "SELECT resume_move($job)");
		wait_for_no_worker($new);
		is(tablespace_of_index($new, 'behind_copy'), 'behind_copy_i: regress_fast', "$name: an interrupted job can be resumed");
		verdict_ok($new, 'behind_copy', "$name: an interrupted job can be resumed");
		verdict_ok($new, 'behind_rebuild', "$name: what was being rebuilt");
		files_ok($new, "$name: an interrupted job can be resumed");
	}
	$new->stop;
}
done_testing();
