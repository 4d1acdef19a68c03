# pg_upgrade from an older version: indexes, history and settings come along,
# what crashed moves have left behind, if they have, stays in the old cluster, and
# moves work.
#
# INDEX_MOVER_OLD_BINDIR names the older version's bin directory; the extension
# must be installed there, too.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old_bin = $ENV{INDEX_MOVER_OLD_BINDIR}
  or plan skip_all => 'INDEX_MOVER_OLD_BINDIR does not name an older version';
my ($old_version) = `$old_bin/pg_config --version` =~ /(\d+)/;
my ($version) = `pg_config --version` =~ /(\d+)/;
cmp_ok($old_version, '<', $version, "from $old_version to $version");
chomp(my $old_share = `$old_bin/pg_config --sharedir`);
BAIL_OUT("index_mover is not installed for $old_bin") unless -f "$old_share/extension/index_mover.control";

foreach my $case ([ 'copy', 1 ], [ 'link', 1 ], [ 'link', 0 ])
{
	my ($mode, $leftovers) = @$case;
	my $name = $mode . ($leftovers ? ', with leftovers' : ', without leftovers');
	(my $dir = $name) =~ s/\W+/_/g;
	# pg_upgrade knows no tablespaces in place; and old and new need the same
	# names for superuser and databases, and no checksums or both.
	my $old = PostgreSQL::Test::Cluster->new("old_$dir", install_path => $old_bin =~ s{/bin/?$}{}r);
	$old->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
	$old->append_conf('postgresql.conf', "wal_level = replica\nautovacuum = off\nrestart_after_crash = on\nindex_mover.min_free_space = 0\n");
	$old->start;
	$old->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION '" . PostgreSQL::Test::Utils::tempdir() . "'")
	  foreach 'regress_slow', 'regress_fast';
	setup_database($old, 'postgres');
	$old->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_mover;
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, jsonb) TO regress_mover;
ALTER DATABASE postgres SET index_mover.max_rate = '777MB';
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g FROM generate_series(1, 20000) g;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_stays ON t USING gin ((ARRAY[v % 100]));
SQL
	$old->safe_psql('postgres', "SELECT move_indexes('t_pkey', 'regress_fast', 'copy')");
	$old->safe_psql('postgres', "SELECT move_indexes('t_v', 'regress_fast', 'rebuild')");
	leave_behind($old, 'postgres') if $leftovers;
	is($old->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup(dry_run => true)'), $leftovers ? '2' : '0',
		"$name: " . ($leftovers ? 'an invalid index and a file are left behind' : 'nothing is left behind'));
	# rows that come and go, so that not all of them are where they were inserted
	$old->safe_psql('postgres', "SELECT oracle.remember_keys('t'); DELETE FROM t WHERE id % 7 = 0; UPDATE t SET v = v + 1 WHERE id % 5 = 0; VACUUM t");
	my $history = "SELECT job, name, status, to_tablespace, size_after FROM index_mover_history ORDER BY job";
	my $before = $old->safe_psql('postgres', $history);
	$old->stop;

	my $new = PostgreSQL::Test::Cluster->new("new_$dir");
	my @checksums = $version >= 18 ? ('--no-data-checksums') : ();
	$new->init(extra => [ '--no-locale', '--encoding=UTF8', @checksums ]);
	$new->append_conf('postgresql.conf', "wal_level = replica\nautovacuum = off\nmax_worker_processes = 8\nindex_mover.min_free_space = 0\n");
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
	is($new->safe_psql('postgres', "SELECT string_agg(name, ' ' ORDER BY name) FROM index_mover_history WHERE status = 'interrupted'"),
		$leftovers ? 'behind_copy_i behind_rebuild_i' : '', "$name: what was killed is interrupted");
	is($new->safe_psql('postgres', 'SHOW index_mover.max_rate'), '777MB', "$name: settings of the database came along");
	is($new->safe_psql('postgres', "SELECT has_function_privilege('regress_mover', 'move_indexes(regclass, name, text, boolean, boolean, jsonb)', 'EXECUTE')"),
		't', "$name: privileges came along");
	is($new->safe_psql('postgres', 'SELECT count(*) FROM pg_index WHERE NOT indisvalid'), '0',
		"$name: the invalid index stayed in the old cluster");
	is($new->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), '0', "$name: there is nothing to clean up");

	files_ok($new, "$name: after pg_upgrade");
	verdict_ok($new, 't', "$name: after pg_upgrade");
	$new->safe_psql('postgres', "SELECT oracle.remember_metadata('t')");

	is($new->safe_psql('postgres', "SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM move_indexes('t', 'regress_slow', 'copy')"),
		't_pkey moved, t_stays moved, t_v moved', "$name: and moves work");
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
