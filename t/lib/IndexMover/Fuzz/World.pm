# IndexMover::Fuzz::World
#   What the fuzzer's calls are about: roles, tablespaces, databases, and relations of all
#   kinds, drawn by a seed.
#
# Two things in it tell of faults by themselves:
#
#   twins        each table fz.dN has one in the schema twin, which no call names.  Clients
#                change both in one transaction; so their rows are equal whenever one looks.
#   recorders    index expressions, column defaults, CHECK, row security, triggers and a
#                materialized view of the tables fz.recN call fz.rec(), which writes a line
#                to the log if it runs as a role other than the owner, or those that may
#                write the table.  No superuser writes these tables.
package IndexMover::Fuzz::World;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Fuzz::Random;

our @EXPORT_OK = qw(draw_world quote_name literal);

our @LOGINS = ('fz_one', 'fz_two', q{fz Qu"oted'}, 'fz_monitor', 'fz_nobody');
our @OWNERS = @LOGINS[ 0 .. 2 ];
our @TABLESPACES = ('fz_a', 'fz_b', q{fz C'd}, 'fz_lost', 'fz_device');
our @DATABASES = ('fuzz', 'fuzz2', q{fuzz "3"});
our $TWINS = 9;

# From this number on are the rows of the child of the table that has one.
our $CHILD = 100_000;

sub quote_name { my ($name) = @_; return '"' . $name =~ s/"/""/gr . '"'; }

sub literal { my ($text) = @_; return defined $text ? q{'} . $text =~ s/'/''/gr . q{'} : 'NULL'; }

# The world of a seed, for a major version, with a tablespace in a directory: { roles => SQL,
# once for a cluster; database => SQL, for each database that has relations; twins => [names];
# extension_schema }.
sub draw_world
{
	my ($seed, $version, $device) = @_;
	my $r = IndexMover::Fuzz::Random->new($seed, 'world');
	my $world = { seed => $seed, version => $version, twins => [] };
	$world->{extension_schema} = $r->chance(70) ? 'public' : 'fz Ext';
	$world->{roles} = draw_roles($r, $seed, $version, $device);
	$world->{database} = draw_database($r, $world);
	return $world;
}

# One role is a member of another, in some way.
sub membership
{
	my ($r, $version, $role, $member) = @_;
	my $sql = 'GRANT ' . quote_name($role) . ' TO ' . quote_name($member);
	return $sql . ($r->chance(20) ? ' WITH ADMIN OPTION' : '') if $version < 16;
	return $sql . ' WITH ' . join ', ', map { "$_ " . $r->pick('TRUE', 'TRUE', 'FALSE') } 'INHERIT', 'SET', $r->chance(20) ? 'ADMIN' : ();
}

sub draw_roles
{
	my ($r, $seed, $version, $device) = @_;
	my $sql = "CREATE ROLE fz_group NOLOGIN;\n";
	$sql .= 'CREATE ROLE ' . quote_name($_) . " LOGIN;\n" for @LOGINS;
	$sql .= "GRANT pg_monitor TO fz_monitor;\n";
	foreach my $role (@LOGINS[ 0 .. 2 ])
	{
		$sql .= 'GRANT fz_group TO ' . quote_name($role) . ";\n" if $r->chance(50);
	}
	# in one order, so that there is no circle
	my $m = IndexMover::Fuzz::Random->new($seed, 'members');
	my @order = map { $_->[1] } sort { $a->[0] <=> $b->[0] } map { [ $m->next, $_ ] } @LOGINS;
	foreach my $i (0 .. $#order)
	{
		$sql .= 'ALTER ROLE ' . quote_name($order[$i]) . " NOINHERIT;\n" if $m->chance(15);
		foreach my $j ($i + 1 .. $#order)
		{
			$sql .= membership($m, $version, @order[ $i, $j ]) . ";\n" if $m->chance(20);
		}
	}
	# in-place tablespaces: the standby has them, too; and one with a device of its own
	$sql .= 'CREATE TABLESPACE ' . quote_name($_) . ' LOCATION ' . literal($_ eq 'fz_device' ? $device : '') . ";\n" for @TABLESPACES;
	foreach my $space (@TABLESPACES)
	{
		foreach my $role (@OWNERS)
		{
			$sql .= 'GRANT CREATE ON TABLESPACE ' . quote_name($space) . ' TO ' . quote_name($role) . ";\n" if $r->chance(90);
		}
	}
	return $sql;
}

# The column that each kind of index is on, and how it is written.
my @indexes = (
	'USING btree (k)', 'USING btree (k, id DESC) INCLUDE (n)', 'USING btree (upper(t) COLLATE "C")', 'USING btree (k) WHERE n > 50',
	'USING hash (t)', 'USING gist (p)', 'USING gist (rng)', 'USING gist (t gist_trgm_ops)', 'USING spgist (t)', 'USING gin (a)',
	'USING gin (doc) WITH (fastupdate = on, gin_pending_list_limit = 64)', 'USING gin (j jsonb_path_ops)',
	'USING brin (id) WITH (pages_per_range = 2)', 'USING bloom (id, k)', 'USING btree (n NULLS FIRST) WITH (fillfactor = 60)',
	'USING btree (k) WITH (deduplicate_items = off)');

my $columns = 'id int, k int, t text, n numeric, p point, rng int4range, a int[], doc tsvector, j jsonb';

# Rows of the tables with twins, from a column g.
our $ROW = "g, g % 97, repeat('text ' || g % 1009, 1 + g % 3), g % 101, point(g % 71, g % 53), int4range(g % 500, g % 500 + 10), "
  . "ARRAY[g % 31, g % 7], to_tsvector('simple', 'w' || g % 211), jsonb_build_object('k', g % 101)";

# A table with all properties that a move must keep, with columns id, k, n, t, rng.
sub properties
{
	my ($table) = @_;
	my ($name) = $table =~ /(\w+)$/;
	return <<SQL;
CREATE STATISTICS fz.${name}_statistics ON k, n FROM $table; CREATE STATISTICS fz.${name}_expressions ON (k + 1), (upper(t)) FROM $table;
ALTER TABLE $table ALTER k SET STATISTICS 300, ALTER n SET (n_distinct = -0.3), ALTER n SET STORAGE EXTERNAL, ALTER t SET COMPRESSION pglz;
ALTER TABLE $table ADD CONSTRAINT ${name}_later UNIQUE (id, k) DEFERRABLE INITIALLY DEFERRED,
	ADD CONSTRAINT ${name}_exclusion EXCLUDE USING gist (id WITH =, rng WITH &&);
CREATE INDEX "${name} expressions" ON $table (abs(k), (n * 2)); ALTER INDEX fz."${name} expressions" ALTER COLUMN 2 SET STATISTICS 77;
COMMENT ON INDEX fz."${name} expressions" IS 'of ${name}'; COMMENT ON CONSTRAINT ${name}_later ON $table IS 'later';
ALTER TABLE $table CLUSTER ON ${name}_pkey, REPLICA IDENTITY USING INDEX ${name}_pkey;
SQL
}

# A partitioned table with partitions that are partitioned, one whose columns are in another
# order, and a default one.
sub nested
{
	my ($i, $owner, $spaces) = @_;
	my $other = join ', ', reverse split /, /, $columns;
	my $sql = <<SQL;
CREATE TABLE fz.d$i ($columns, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE fz."d$i hashed" PARTITION OF fz.d$i FOR VALUES FROM (MINVALUE) TO (1000) PARTITION BY HASH (id)@{[ $spaces->() ]};
CREATE TABLE fz."d$i hashed 0" PARTITION OF fz."d$i hashed" FOR VALUES WITH (MODULUS 2, REMAINDER 0)@{[ $spaces->() ]};
CREATE TABLE fz."d$i hashed 1" PARTITION OF fz."d$i hashed" FOR VALUES WITH (MODULUS 2, REMAINDER 1)@{[ $spaces->() ]};
CREATE TABLE fz."d$i other" (gone int, $other)@{[ $spaces->() ]};
ALTER TABLE fz."d$i other" DROP gone, ALTER id SET NOT NULL;
ALTER TABLE fz.d$i ATTACH PARTITION fz."d$i other" FOR VALUES FROM (1000) TO (3000);
CREATE TABLE fz."d$i default" PARTITION OF fz.d$i DEFAULT@{[ $spaces->() ]};
SQL
	$sql .= "ALTER TABLE fz.\"d$i $_\" OWNER TO $owner;\n" for 'hashed', 'hashed 0', 'hashed 1', 'other', 'default';
	return $sql;
}

sub draw_database
{
	my ($r, $world) = @_;
	my $ext = quote_name($world->{extension_schema});
	my @owners = map { quote_name($_) } @OWNERS;
	my @spaces = map { quote_name($_) } @TABLESPACES;
	my $spaces = sub { my $s = $r->pick('pg_default', @spaces); return $s eq 'pg_default' ? '' : " TABLESPACE $s"; };
	my $all = join ', ', @owners;
	my $sql = <<SQL;
SET client_min_messages = error;
CREATE SCHEMA IF NOT EXISTS $ext;
CREATE EXTENSION btree_gist; CREATE EXTENSION pg_trgm; CREATE EXTENSION bloom;
CREATE EXTENSION index_mover SCHEMA $ext;
GRANT USAGE ON SCHEMA $ext TO PUBLIC;
CREATE SCHEMA fz; CREATE SCHEMA "fz Other"; CREATE SCHEMA twin;
GRANT ALL ON SCHEMA fz, "fz Other" TO $all;
GRANT USAGE ON SCHEMA fz, twin TO PUBLIC;
-- the locks of sessions that are idle before and after they are read
CREATE FUNCTION oracle.idle_locks() RETURNS TABLE (pid int, lock text, query text) LANGUAGE plpgsql AS \$\$
DECLARE
	idle	jsonb := (SELECT jsonb_object_agg(a.pid, a.state_change) FROM pg_stat_activity a
		WHERE a.state = 'idle' AND a.application_name ~ '^fuzz [0-9]+\$');
	-- (an idle session takes others' invalidation messages in a transaction of its own)
	locks	jsonb := (SELECT jsonb_agg(to_jsonb(l)) FROM pg_locks l WHERE idle ? l.pid::text AND l.locktype <> 'virtualxid');
BEGIN
	PERFORM pg_stat_clear_snapshot();
	RETURN QUERY SELECT a.pid, concat_ws(' ', l.locktype, l.mode, l.relation::regclass, l.objid), left(a.query, 200)
	  FROM jsonb_populate_recordset(NULL::pg_locks, locks) l JOIN pg_stat_activity a ON a.pid = l.pid
	 WHERE a.state = 'idle' AND a.state_change = (idle ->> a.pid::text)::timestamptz;
END \$\$;
CREATE FUNCTION fz.rec(what text, allowed text[], i int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS \$\$
BEGIN
	IF current_user::text <> ALL (allowed) THEN
		RAISE LOG 'FUZZ foreign role: "%" runs % (session of "%")', current_user, what, session_user;
	END IF;
	RETURN i;
END \$\$;
DO \$\$
DECLARE
	f regprocedure;
BEGIN
	FOR f IN SELECT d.objid::regprocedure FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_proc p ON p.oid = d.objid
			 WHERE d.classid = 'pg_proc'::regclass AND e.extname = 'index_mover' AND p.pronamespace <> 'index_mover'::regnamespace LOOP
		EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO ', f) || @{[ literal("$all, fz_monitor") ]};
	END LOOP;
END \$\$;
SQL
	$sql .= "GRANT SELECT, INSERT, UPDATE, DELETE ON $ext.tier_policy TO $all, fz_monitor;\n";
	$sql .= "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA $ext TO fz_group;\n" if $r->chance(50);

	# Tables with twins.
	$sql .= "CREATE DOMAIN fz.number AS int CHECK (VALUE > -1000000000); CREATE DOMAIN fz.words AS text CHECK (length(VALUE) < 1000000);\n"
	  . "GRANT USAGE ON TYPE fz.number, fz.words TO PUBLIC;\n";
	my @kinds = ('plain', 'toast', 'partitioned', 'unlogged', 'generated', 'reloptions', 'domain', 'nested', 'inherited');
	die "there are $TWINS twins\n" if @kinds != $TWINS;
	foreach my $i (0 .. $#kinds)
	{
		my $owner = $r->pick(@owners);
		my $kind = $kinds[$i];
		my ($more, $of) = ('', '');
		$sql .= "CREATE TABLE twin.d$i ($columns, PRIMARY KEY (id));\n";
		if ($kind eq 'partitioned')
		{
			$sql .= "CREATE TABLE fz.d$i ($columns, PRIMARY KEY (id)) PARTITION BY RANGE (id);\n";
			foreach my $n (0 .. 2)
			{
				my $to = $n == 2 ? 'MAXVALUE' : 1000 * ($n + 1);
				$sql .= "CREATE TABLE fz.\"d${i} part $n\" PARTITION OF fz.d$i FOR VALUES FROM (" . ($n ? 1000 * $n : 'MINVALUE')
				  . ") TO ($to)" . $spaces->() . ";\nALTER TABLE fz.\"d${i} part $n\" OWNER TO $owner;\n";
			}
		}
		elsif ($kind eq 'nested') { $sql .= nested($i, $owner, $spaces) }
		else
		{
			my $columns = $kind eq 'domain' ? $columns =~ s/\bk int/k fz.number/r =~ s/\bt text/t fz.words/r : $columns;
			$of = 'UNLOGGED ' if $kind eq 'unlogged';
			$more = ', g2 int GENERATED ALWAYS AS (k * 2) STORED, i2 bigint GENERATED BY DEFAULT AS IDENTITY' if $kind eq 'generated';
			$sql .= "CREATE ${of}TABLE fz.d$i ($columns$more, PRIMARY KEY (id))"
			  . ($kind eq 'reloptions' ? ' WITH (fillfactor = 50, autovacuum_enabled = off)' : '') . $spaces->() . ";\n";
			$sql .= "CREATE TABLE fz.\"d$i child\" (more text, PRIMARY KEY (id)) INHERITS (fz.d$i)" . $spaces->()
			  . ";\nALTER TABLE fz.\"d$i child\" OWNER TO $owner;\nCREATE INDEX \"d$i child k\" ON fz.\"d$i child\" (k);\n"
			  if $kind eq 'inherited';
			$sql .= "ALTER TABLE fz.d$i ALTER t SET STORAGE EXTERNAL;\n" if $kind eq 'toast';
			$sql .= "ALTER TABLE twin.d$i SET UNLOGGED;\n" if $kind eq 'unlogged';
		}
		foreach my $n (0 .. $#indexes)
		{
			next unless $r->chance(45);
			# core does not log the init fork of a bloom index: a crash before the next
			# checkpoint leaves zeros (seen on 18.6, without a move)
			next if $kind eq 'unlogged' && $indexes[$n] =~ /bloom/;
			my ($on, $where) = $indexes[$n] =~ /^(.*?)( WHERE .*)?$/;
			$sql .= "CREATE INDEX \"d${i} Ix $n\" ON fz.d$i $on" . $spaces->() . ($where // '') . ";\n";
		}
		$sql .= "ALTER TABLE fz.d$i OWNER TO $owner; GRANT SELECT, INSERT, UPDATE, DELETE ON fz.d$i, twin.d$i TO $all;\n";
		my $row = $kind eq 'toast' ? $ROW =~ s/repeat\('text ' \|\| g % 1009, 1 \+ g % 3\)/repeat(md5(g::text), 1 + (g % 3) * 70)/r
			: $ROW;
		my $rows = $r->pick(50, 300, 1200, 5000);
		$sql .= "INSERT INTO twin.d$i SELECT $row FROM generate_series(1, $rows) g;\n";
		$sql .= "INSERT INTO fz.d$i (id, k, t, n, p, rng, a, doc, j) SELECT * FROM twin.d$i;\n";
		$sql .= "INSERT INTO twin.d$i SELECT $row FROM generate_series($CHILD + 1, $CHILD + $rows) g;\n"
		  . "INSERT INTO fz.\"d$i child\" SELECT *, 'more' FROM twin.d$i WHERE id > $CHILD;\n"
		  if $kind eq 'inherited';
		$sql .= properties("fz.d$i") if $kind eq 'domain';
		# an index that CREATE INDEX CONCURRENTLY has left behind, and one that only lacks its validation
		$sql .= "\\set ON_ERROR_STOP off\nCREATE UNIQUE INDEX CONCURRENTLY \"d$i invalid\" ON fz.d$i ((id * 0))" . $spaces->()
		  . ";\n\\set ON_ERROR_STOP on\nCREATE INDEX \"d$i not valid\" ON fz.d$i (n)" . $spaces->()
		  . ";\nUPDATE pg_index SET indisvalid = false WHERE indexrelid = 'fz.\"d$i not valid\"'::regclass;\n"
		  if $kind eq 'plain' || $kind eq 'domain';
		push @{ $world->{twins} }, "d$i";
	}

	# Recorders.
	foreach my $i (0 .. 1)
	{
		my $owner = $OWNERS[ $r->below(3) ];
		my $writer = $OWNERS[ $r->below(3) ];
		my $allowed = literal('{' . join(',', map { '"' . s/(["\\])/\\$1/gr . '"' } $owner, $writer) . '}');
		my ($o, $w) = (quote_name($owner), quote_name($writer));
		$sql .= <<SQL;
CREATE DOMAIN fz.rec${i}_domain AS int CHECK (fz.rec('domain of rec$i', $allowed, 1) = 1);
CREATE TABLE fz.rec$i (id int PRIMARY KEY, v int DEFAULT fz.rec('default of rec$i', $allowed, 7), t text,
	g int GENERATED ALWAYS AS (fz.rec('generated column of rec$i', $allowed, v)) STORED,
	CHECK (fz.rec('check of rec$i', $allowed, 1) = 1))@{[ $spaces->() ]};
ALTER DOMAIN fz.rec${i}_domain OWNER TO $o;
ALTER TABLE fz.rec$i OWNER TO $o;
SET ROLE $o;
INSERT INTO fz.rec$i (id, t) SELECT g, md5(g::text) FROM generate_series(1, 40) g;
CREATE INDEX "rec$i ix" ON fz.rec$i (fz.rec('index of rec$i', $allowed, v));
CREATE INDEX "rec$i domain" ON fz.rec$i ((v::fz.rec${i}_domain));
CREATE STATISTICS fz.rec${i}_statistics ON (fz.rec('statistics of rec$i', $allowed, v)), id FROM fz.rec$i;
CREATE INDEX "rec$i part" ON fz.rec$i USING hash (t) WHERE fz.rec('predicate of rec$i', $allowed, 1) = 1;
CREATE FUNCTION fz.rec${i}_trigger() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN PERFORM fz.rec('trigger of rec$i', $allowed, 1); RETURN coalesce(NEW, OLD); END \$\$;
CREATE TRIGGER rec BEFORE INSERT OR UPDATE OR DELETE ON fz.rec$i FOR EACH ROW EXECUTE FUNCTION fz.rec${i}_trigger();
GRANT ALL ON fz.rec$i TO $w;
CREATE POLICY p ON fz.rec$i USING (fz.rec('policy of rec$i', $allowed, 1) = 1);
ALTER TABLE fz.rec$i ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE MATERIALIZED VIEW fz.rec${i}_view AS SELECT fz.rec('view of rec$i', $allowed, g) AS g FROM generate_series(1, 20) g;
CREATE UNIQUE INDEX ON fz.rec${i}_view (g);
RESET ROLE;
SQL
		push @{ $world->{recorders} }, { table => "fz.rec$i", roles => [ $owner, $writer ], allowed => $allowed };
	}
	my $owner = $r->pick(@owners);
	my $size = $r->pick(2000, 20000, 60000);
	$sql .= <<SQL;
CREATE TABLE fz.big (id int PRIMARY KEY, t text)@{[ $spaces->() ]};
INSERT INTO fz.big SELECT g, md5(g::text) FROM generate_series(1, $size) g;
CREATE INDEX "big t" ON fz.big (t)@{[ $spaces->() ]};
ALTER TABLE fz.big OWNER TO $owner;
CREATE TABLE fz."Tab ""le' x" (id int, EXCLUDE USING gist (id WITH =), UNIQUE (id) DEFERRABLE)@{[ $spaces->() ]};
INSERT INTO fz."Tab ""le' x" SELECT generate_series(1, 200);
ALTER TABLE fz."Tab ""le' x" OWNER TO @{[ $r->pick(@owners) ]};
CREATE TABLE "fz Other".parent (id int, t text)@{[ $spaces->() ]};
CREATE TABLE "fz Other".child (more int) INHERITS ("fz Other".parent)@{[ $spaces->() ]};
CREATE INDEX ON "fz Other".child (id);
INSERT INTO "fz Other".child SELECT g, 'x', g FROM generate_series(1, 500) g;
ALTER TABLE "fz Other".parent OWNER TO @{[ $r->pick(@owners) ]};
ALTER TABLE "fz Other".child OWNER TO @{[ $r->pick(@owners) ]};
CREATE FOREIGN DATA WRAPPER fz_wrapper; CREATE SERVER fz_server FOREIGN DATA WRAPPER fz_wrapper;
CREATE FOREIGN TABLE fz.foreign_table (id int) SERVER fz_server;
CREATE MATERIALIZED VIEW fz.mat@{[ $spaces->() ]} AS SELECT id, t FROM fz.big WHERE id < 1000;
CREATE UNIQUE INDEX ON fz.mat (id);
ALTER MATERIALIZED VIEW fz.mat OWNER TO $owner;
CREATE VIEW fz.plain_view AS SELECT id FROM fz.big;
CREATE SEQUENCE fz.seq; CREATE TYPE fz.composite AS (i int);
CREATE TABLE fz.empty (i int)@{[ $spaces->() ]}; CREATE INDEX ON fz.empty (i); ALTER TABLE fz.empty OWNER TO @{[ $r->pick(@owners) ]};
CREATE TABLE fz.lost (id int PRIMARY KEY, t text);
INSERT INTO fz.lost SELECT g, md5(g::text) FROM generate_series(1, 1000) g;
CREATE INDEX lost_t ON fz.lost (t) TABLESPACE fz_lost; CREATE INDEX lost_hash ON fz.lost USING hash (t) TABLESPACE fz_lost;
ALTER TABLE fz.lost OWNER TO @{[ $r->pick(@owners) ]};
CREATE TABLE fz.member (i int PRIMARY KEY); ALTER EXTENSION bloom ADD TABLE fz.member;
CREATE TABLE fz.months (at timestamptz, id bigint) PARTITION BY RANGE (at);
SQL
	foreach my $m (1 .. 4)
	{
		$sql .= "CREATE TABLE fz.months_$m PARTITION OF fz.months FOR VALUES FROM ('2025-0$m-01') TO ('2025-0" . ($m + 1) . "-01')"
		  . $spaces->() . ";\nINSERT INTO fz.months SELECT '2025-0$m-02', g FROM generate_series(1, 100) g;\n";
	}
	$sql .= "CREATE INDEX ON fz.months (id); ALTER TABLE fz.months OWNER TO $owner;\n";
	$sql .= "ALTER TABLE fz.months_$_ OWNER TO $owner;\n" for 1 .. 4;
	$sql .= 'CREATE TABLE fz.keys (id ' . $r->pick('bigint', 'int', 'date', 'uuid')
		. ") PARTITION BY RANGE (id); ALTER TABLE fz.keys OWNER TO $owner;\n";
	my $m = IndexMover::Fuzz::Random->new($world->{seed}, 'more relations');
	# as a session that is canceled in DETACH PARTITION CONCURRENTLY leaves it
	$sql .= "UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = 'fz.months_4'::regclass;\n" if $m->chance(40);
	# no DDL changes it, so a move has kept all of it
	$sql .= "CREATE TABLE fz.kept (id int PRIMARY KEY, k int, n numeric, t text, rng int4range) WITH (autovacuum_enabled = off);\n"
	  . "INSERT INTO fz.kept SELECT g, g % 97, g % 101, repeat('text', 1 + g % 5), int4range(g, g + 2) FROM generate_series(1, 900) g;\n"
	  . properties('fz.kept') . 'ALTER TABLE fz.kept OWNER TO ' . quote_name($m->pick(@OWNERS)) . ";\n"
	  . "CREATE PUBLICATION fz_publication FOR TABLE fz.kept, fz.d6; GRANT SELECT ON fz.kept TO fz_monitor;\n"
	  . "CREATE POLICY kept ON fz.kept USING (id > 0); CREATE RULE kept AS ON DELETE TO fz.kept WHERE OLD.id < 0 DO INSTEAD NOTHING;\n";
	$sql .= "ALTER TABLE fz.big SET (autovacuum_vacuum_insert_threshold = 50); ALTER TABLE fz.big ALTER t SET STATISTICS 10;\n"
	  if $m->chance(50);
	if ($r->chance(60))
	{
		$sql .= <<SQL;
CREATE FUNCTION fz.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS \$\$
BEGIN
	-- only the role of the session, or the owner of what it is about: never a superuser's in another's session
	IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) AND NOT (SELECT rolsuper FROM pg_catalog.pg_roles
		WHERE rolname = session_user) THEN
		RAISE LOG 'FUZZ foreign role: "%" runs an event trigger (session of "%")', current_user, session_user;
	END IF;
END \$\$;
CREATE EVENT TRIGGER fz_start ON ddl_command_start EXECUTE FUNCTION fz.on_ddl();
CREATE EVENT TRIGGER fz_end ON ddl_command_end EXECUTE FUNCTION fz.on_ddl();
SQL
	}
	# whose is what, for those who draw calls
	while ($sql =~ /^ALTER (?:TABLE|MATERIALIZED VIEW) (.+?) OWNER TO ("(?:[^"]|"")*")/gm)
	{
		my ($table, $role) = ($1, $2);
		push @{ $world->{owned}{ $role =~ s/^"|"$//gr =~ s/""/"/gr } }, $table;
	}
	while ($sql =~ /; ALTER TABLE (\S+) OWNER TO ("(?:[^"]|"")*")/g)
	{
		my ($table, $role) = ($1, $2);
		push @{ $world->{owned}{ $role =~ s/^"|"$//gr =~ s/""/"/gr } }, $table;
	}
	$sql .= "ANALYZE;\n";
	return $sql;
}

1;
