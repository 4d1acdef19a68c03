# IndexMover::Node
#   Servers with two tablespaces and the extension, and what the tests put on them.
package IndexMover::Node;

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use IndexMover::Session;
use IndexMover::Wait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils ();

our @EXPORT = qw(new_node password_of setup_database own_devices file_system_of make_zoo make_gate leave_behind
	tablespace_of_index block_size);

# Core's modules take away most of what psql would be told by the environment.
BEGIN
{
	delete @ENV{ grep { /^PG[A-Z]/ && $_ ne 'PGAPPNAME' } keys %ENV };
}

# A started server whose database "postgres" is ready (see setup_database).
# Options: streaming => 1; conf => text for postgresql.conf; extra => [initdb's
# options]; extension => 0 to leave the extension out; start => 0; verify => 0, see
# below; trust_tcp => 1 to let all in that come by TCP.
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(
		allows_streaming => $options{streaming} ? 1 : 0,
		extra => $options{extra} || []);
	# Core's test settings are those of a small server that may lose its data;
	# the settings here are what a user starts with, but no autovacuum: tests
	# say when they want it; and no just-in-time compilation, which each query gets that
	# is planned in spite of enable_seqscan = off, and takes ten times as long by it (in
	# t/054_world_configurations.pl there is).  How full the machine's disk is, no test
	# depends on.
	$node->append_conf('postgresql.conf', <<CONF);
wal_level = replica
max_wal_senders = 10
max_connections = 50
shared_buffers = 32MB
max_worker_processes = 8
max_prepared_transactions = 10
autovacuum = off
jit = off
restart_after_crash = on
allow_in_place_tablespaces = on
log_error_verbosity = verbose
log_statement = none
index_mover.min_free_space = 0
CONF
	# And each copy is compared with the original, whatever else a test looks at,
	# but where that would be in the way: these say so, and why.
	$node->append_conf('postgresql.conf', 'index_mover.verify = on')
	  unless exists $options{verify} && !$options{verify};
	$node->append_conf('postgresql.conf', $options{conf}) if $options{conf};
	# Unlike the socket, a TCP port is open to all users of the machine: see password_of().
	if (!$options{trust_tcp})
	{
		my $hba = $node->data_dir . '/pg_hba.conf';
		my $lines = PostgreSQL::Test::Utils::slurp_file($hba);
		unlink $hba;
		$node->append_conf('pg_hba.conf', $lines =~ s/^(host\b.*\s)trust$/$1scram-sha-256/mgr);
	}
	return $node if exists $options{start} && !$options{start};
	$node->start;
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_slow LOCATION ''");
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_fast LOCATION ''");
	setup_database($node, 'postgres', %options);
	return $node;
}

# Give a role a password, for clients that come by TCP; returns it.
sub password_of
{
	my ($node, $role) = @_;
	open(my $fh, '<:raw', '/dev/urandom') or die "/dev/urandom: $!";
	read($fh, my $random, 16) == 16 or die '/dev/urandom';
	my $password = unpack 'H*', $random;
	$node->safe_psql('postgres', qq{ALTER ROLE "$role" PASSWORD '$password'});
	return $password;
}

# Load the oracles and the extension into a database.
sub setup_database
{
	my ($node, $db, %options) = @_;
	$node->psql(
		$db,
		"SET client_min_messages = warning;\n"
		  . PostgreSQL::Test::Utils::slurp_file(
			dirname(__FILE__) . '/../../../sql/include/oracles.sql'),
		on_error_die => 1);
	$node->safe_psql($db, 'CREATE EXTENSION index_mover CASCADE')
	  unless exists $options{extension} && !$options{extension};
	return;
}

# In-place tablespaces are on one device, between which nothing is gained: have the
# server, a test build, think that each has its own, or no longer.
sub own_devices
{
	my ($node, $off) = @_;
	my $list = $off ? '' : 'regress_slow:1:1000000000000:1000000000000,regress_fast:2:1000000000000:1000000000000';
	$node->append_conf('postgresql.conf', "index_mover.test_file_systems = '$list'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('index_mover.test_file_systems') = '$list'") or die;
	return;
}

# The free and all bytes of a tablespace's file system, as the server sees it.
sub file_system_of
{
	my ($node, $tablespace) = @_;
	my $oid = $node->safe_psql('postgres', "SELECT oid FROM pg_tablespace WHERE spcname = '$tablespace'");
	my ($free, $total, $block) = split ' ', $node->safe_psql('postgres', <<SQL);
CREATE TEMP TABLE f (l text);
COPY f FROM PROGRAM 'stat -f -c "%a %b %S" pg_tblspc/$oid/';
TABLE f;
SQL
	return ($free * $block, $total * $block);
}

# Make the table $table with an index of every kind that core can rebuild
# concurrently, in tablespace regress_slow, and $rows rows.  (Whether it can a
# deferrable constraint's depends on the minor version: t/016_rebuild_deferrable.pl.)
sub make_zoo
{
	my ($node, $table, $rows, $db) = @_;
	$node->safe_psql($db || 'postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS bloom;
SET default_tablespace = regress_slow;
CREATE TABLE $table (
	id int PRIMARY KEY, grp int NOT NULL, txt text, num numeric, pt point,
	rng int4range, arr int[], doc tsvector, js jsonb, maybe int,
	UNIQUE (num)) WITH (fillfactor = 70);
CREATE UNIQUE INDEX ${table}_incl ON $table (id) INCLUDE (grp) WITH (fillfactor = 80);
CREATE INDEX ${table}_txt ON $table (txt COLLATE "C" DESC NULLS LAST);
CREATE INDEX ${table}_multi ON $table (maybe, grp);
CREATE INDEX ${table}_part ON $table (grp) WHERE maybe IS NULL;
CREATE INDEX ${table}_expr ON $table (upper(txt));
CREATE INDEX ${table}_hash ON $table USING hash (txt);
CREATE INDEX ${table}_gist ON $table USING gist (pt);
CREATE INDEX ${table}_rng ON $table USING gist (rng);
CREATE INDEX ${table}_trgm ON $table USING gist (txt gist_trgm_ops (siglen = 32));
CREATE INDEX ${table}_sp ON $table USING spgist (txt);
CREATE INDEX ${table}_arr ON $table USING gin (arr);
CREATE INDEX ${table}_doc ON $table USING gin (doc);
CREATE INDEX ${table}_js ON $table USING gin (js jsonb_path_ops);
CREATE INDEX ${table}_brin ON $table USING brin (id) WITH (pages_per_range = 4);
CREATE INDEX ${table}_bloom ON $table USING bloom (id, grp);
COMMENT ON INDEX ${table}_txt IS 'a comment that must stay';
ALTER INDEX ${table}_expr ALTER COLUMN 1 SET STATISTICS 77;
ALTER TABLE $table REPLICA IDENTITY USING INDEX ${table}_incl;
ALTER TABLE $table CLUSTER ON ${table}_incl;
INSERT INTO $table
SELECT g, g % 97, 'text ' || g % 1009, g, point(g % 71, g % 53), int4range(g, g + 10),
       ARRAY[g % 31, g % 7], to_tsvector('simple', 'w' || g % 211 || ' x' || g % 11),
       jsonb_build_object('k', g % 101), CASE WHEN g % 3 = 0 THEN g % 50 END
  FROM generate_series(1, $rows) g;
VACUUM ANALYZE $table;
SQL
	return;
}

# Make the function $name(int): a build of an index with it waits while a session
# holds the advisory lock of that number.
sub make_gate
{
	my ($node, $name, $lock, $db) = @_;
	$node->safe_psql($db || 'postgres', <<SQL);
CREATE FUNCTION $name(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	PERFORM pg_advisory_lock_shared($lock);
	PERFORM pg_advisory_unlock_shared($lock);
	RETURN i;
END \$\$;
SQL
	return;
}

# Kill a rebuild and a copy, so that both leave behind what they can: an invalid
# index of table behind_rebuild, and a file for behind_copy.  Both tables are
# made here, with indexes in regress_slow.
sub leave_behind
{
	my ($node, $db) = @_;
	make_gate($node, 'behind_gate', 43, $db);
	$node->safe_psql($db, <<'SQL');
SET default_tablespace = regress_slow;
CREATE TABLE behind_rebuild (i int);
INSERT INTO behind_rebuild SELECT generate_series(1, 50);
CREATE INDEX behind_rebuild_i ON behind_rebuild (behind_gate(i));
CREATE TABLE behind_copy (i int);
INSERT INTO behind_copy SELECT generate_series(1, 50000);
CREATE INDEX behind_copy_i ON behind_copy (i);
SQL
	my %kill = (
		rebuild => [ "phase = 'building index'", '{}' ],
		copy    => [ "throttled_by = 'max_rate'", '{"max_rate": "64kB"}' ]);
	foreach my $method ('rebuild', 'copy')
	{
		my ($state, $settings) = @{ $kill{$method} };
		my $gate = IndexMover::Session->new($node, dbname => $db);
		$gate->run('SELECT pg_advisory_lock(43)');
		$node->safe_psql($db, "SELECT move_indexes('behind_$method', 'regress_fast', '$method', wait => false, settings => '$settings')");
		poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE $state", 't', $state, dbname => $db);
		kill 'KILL', worker_pid($node, dbname => $db);
		poll_until($node, "SELECT pg_postmaster_start_time() IS NOT NULL
		                   AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'index_mover')
		                   AND NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')",
			't', 'restart after a kill');
		$gate->end;
	}
	return;
}

# The tablespace of an index, 'default' if it is its database's; of a table those of
# its indexes, "name: tablespace" in lines.
sub tablespace_of_index
{
	my ($node, $relation, %options) = @_;
	return $node->safe_psql($options{dbname} || 'postgres', <<SQL);
SELECT CASE WHEN i.indrelid = r THEN c.relname || ': ' ELSE '' END || coalesce(t.spcname, 'default')
  FROM CAST('$relation' AS regclass) r
  JOIN pg_index i ON r IN (i.indrelid, i.indexrelid)
  JOIN pg_class c ON c.oid = i.indexrelid
  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
 ORDER BY 1
SQL
}

# The size of a page, 8192 unless PostgreSQL was built otherwise.
sub block_size
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SHOW block_size');
}

1;
