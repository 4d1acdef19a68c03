# What evacuate_tablespace() says stays: the commands of its rows are run as they are, in
# the order of the rows, and core's DROP TABLESPACE then works.  The tablespace is the
# default one of a database, of another one, and holds catalogs of a third; settings of
# roles, databases and the server name it.
#
# Fault (tables): what stays in a tablespace: catalogs, large objects, settings, the default of
#   databases; the commands that are printed, run as they are, and then `DROP TABLESPACE`
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('drop');
sub sql { return $node->safe_psql('postgres', @_) }

# a tablespace whose names need quotes, one for the rest, and one that is full of others
my $old = '"Old ""disk"""';
sql("CREATE TABLESPACE $_ LOCATION ''") foreach $old, 'third';
sql(<<SQL);
CREATE ROLE "App ""one""";
CREATE DATABASE home TABLESPACE $old;
CREATE DATABASE "other ""db""" TABLESPACE $old;
CREATE DATABASE plain;
CREATE DATABASE closed TABLESPACE $old;
ALTER DATABASE closed ALLOW_CONNECTIONS false;
ALTER ROLE "App ""one""" SET default_tablespace = $old;
ALTER ROLE "App ""one""" IN DATABASE "other ""db""" SET temp_tablespaces = third, '', $old;
ALTER ROLE ALL SET temp_tablespaces = $old;
ALTER DATABASE plain SET default_tablespace = $old;
-- these name others
ALTER DATABASE home SET temp_tablespaces = 'old "disk"', third;
ALTER DATABASE home SET default_tablespace = 'third, Old "disk"';
SQL
sql("ALTER SYSTEM SET default_tablespace = $old");
$node->append_conf('postgresql.conf', qq(temp_tablespaces = 'third, "Old ""disk"""'));
$node->reload;
setup_database($node, $_) foreach 'home', 'other "db"', 'plain';
foreach my $db ('postgres', 'home', 'other "db"', 'plain')
{
	$node->safe_psql($db, <<SQL);
SET default_tablespace = $old;
CREATE TABLE t (id int PRIMARY KEY, note text);
INSERT INTO t SELECT g, repeat('x', g) FROM generate_series(1, 100) g;
CREATE TABLE "Un""logged" (i int PRIMARY KEY);
ALTER TABLE "Un""logged" SET UNLOGGED;
CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t;
CREATE SEQUENCE s;
SELECT lo_from_bytea(0, 'large object');
SQL
}
# a database that has no files there, but a partitioned table
sql('CREATE DATABASE defaults');
$node->safe_psql('defaults', "CREATE TABLE parts (i int) PARTITION BY RANGE (i) TABLESPACE $old");
# catalogs, and tables of the extension
$node->safe_psql('plain', <<SQL);
SET allow_system_table_mods = on;
ALTER TABLE pg_largeobject SET TABLESPACE $old;
ALTER INDEX pg_largeobject_loid_pn_index SET TABLESPACE $old;
ALTER TABLE pg_description SET TABLESPACE $old;
CREATE TABLE parts (i int) PARTITION BY RANGE (i) TABLESPACE $old;
ALTER TABLE index_mover.move_log SET TABLESPACE $old;
CREATE SCHEMA "s 1";
CREATE FUNCTION "s 1".sorts(a int[], "b" text) RETURNS int SET temp_tablespaces = $old, third LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE fills() SET default_tablespace = $old LANGUAGE sql AS 'SELECT 1';
SQL

my $also = 'This database has files in the tablespace, too. Files of moved or dropped relations go at the next checkpoint. To move '
	. 'the others, in that database, with the extension created in it: '
  . q{SELECT * FROM index_mover_call.evacuate_tablespace('Old "disk"', 'regress_fast');};
my $closed = 'This database has files in the tablespace, too. It accepts no connections, in which they could be moved.';

sub rows
{
	my ($db, $more, $to) = @_;
	$to ||= 'regress_fast';
	return map { [ split /\|/ ] } split /\n/, $node->safe_psql($db, <<SQL);
SELECT kind, name, detail FROM evacuate_tablespace('Old "disk"', '$to'$more) WITH ORDINALITY WHERE status = 'skipped' ORDER BY ordinality
SQL
}

is(join("\n", sort map { join '|', @$_ } grep { $_->[0] =~ /setting|catalog|database/ } rows('plain', ', dry_run => true')),
	<<"ROWS" =~ s/\n\z//r, 'what stays of the cluster');
database|closed|$closed Or, with no session connected to it: ALTER DATABASE closed SET TABLESPACE regress_fast;
database|defaults|$also
database|home|$also Or, with no session connected to it: ALTER DATABASE home SET TABLESPACE regress_fast;
database|other "db"|$also Or, with no session connected to it: ALTER DATABASE "other ""db""" SET TABLESPACE regress_fast;
database|postgres|$also
setting|default_tablespace|It names the tablespace, until the configuration is loaded again after: ALTER SYSTEM RESET default_tablespace;
setting|default_tablespace|It names the tablespace: ALTER DATABASE plain RESET default_tablespace;
setting|default_tablespace|It names the tablespace: ALTER ROLE "App ""one""" RESET default_tablespace;
setting|default_tablespace|It names the tablespace: ALTER ROUTINE public.fills() RESET default_tablespace;
setting|temp_tablespaces|It names the tablespace, in postgresql.conf.
setting|temp_tablespaces|It names the tablespace: ALTER ROLE "App ""one""" IN DATABASE "other ""db""" SET temp_tablespaces TO third, '';
setting|temp_tablespaces|It names the tablespace: ALTER ROLE ALL RESET temp_tablespaces;
setting|temp_tablespaces|It names the tablespace: ALTER ROUTINE "s 1".sorts(integer[],pg_catalog.text) SET temp_tablespaces TO third;
ROWS

# ---- the moves, and the commands of the rows -------------------------------------------------
my $run = 0;
setup_database($node, 'defaults');
foreach my $db ('home', 'plain', 'postgres', 'defaults')
{
	foreach my $row (rows($db, ''))
	{
		my ($kind, $name, $detail) = @$row;
		next unless $detail =~ /((?:ALTER|DO) .*;)$/ && $kind ne 'database';
		# not while a client is connected
		my $in = $kind eq 'system catalogs' ? 'postgres' : $db;
		my (undef, undef, $err) = $node->psql($in, $1);
		unlike($err, qr/ERROR|FATAL/, "$db: $1");
		$run++;
	}
}
cmp_ok($run, '>=', 20, 'so many commands');
# what the other two databases are said to need, from where it is said
foreach my $row (rows('postgres', ', dry_run => true'))
{
	next unless $row->[2] =~ /(ALTER DATABASE .*;)$/;
	my (undef, undef, $err) = $node->psql('postgres', $1);
	is($err, '', $1);
}
$node->safe_psql('other "db"', 'DROP TABLE "Un""logged"');
$node->adjust_conf('postgresql.conf', 'temp_tablespaces', undef);
$node->reload;
rows('other "db"', '');
is(join(' ', map { "@$_" } rows($_, ', dry_run => true')), '', "nothing is left of $_") foreach 'postgres', 'plain', 'defaults';
my (undef, undef, $err) = $node->psql('postgres', "DROP TABLESPACE $old");
is($err, '', 'DROP TABLESPACE');
is($node->safe_psql($_, "SELECT convert_from(lo_get(oid), 'utf8') FROM pg_largeobject_metadata"), 'large object',
	"$_: large objects are there")
  foreach 'home', 'plain', 'other "db"';

# ---- where core has no command -------------------------------------------------------------------
like($node->safe_psql('home',
	"SELECT detail FROM evacuate_tablespace('pg_default', 'regress_fast', dry_run => true) WHERE kind = 'system catalogs'"),
	joined(
		qr/^This is the default tablespace of the database: .* From another database, .*: ALTER DATABASE home SET /,
		qr/TABLESPACE (?:third|regress_slow);$/),
	'the default tablespace of the cluster goes to one without files of the database');
$node->safe_psql('home', "CREATE TABLE in_$_ (i int) TABLESPACE $_; INSERT INTO in_$_ VALUES (1)") foreach 'third', 'regress_slow',
	'regress_fast';
like($node->safe_psql('home',
	"SELECT detail FROM evacuate_tablespace('pg_default', 'regress_fast', dry_run => true) WHERE kind = 'system catalogs'"),
	qr/ PostgreSQL can move them only to a tablespace without files of this database, and there is none\.$/, 'or nowhere');
$node->stop;
done_testing();
