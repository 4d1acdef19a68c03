# IndexMover::Together
#   What core keeps together is together: no table is in another tablespace than its
#   TOAST table or the index of that.  Each test file asks that, because IndexMover::Test
#   uses this one: each database of a server that is about to be stopped, and of those
#   that still run at the end of the file; there it is one assertion.
#
#   my $apart = apart($node, 'postgres');    # the tables of one database, in lines
#
# Fault (tables): a table apart from its TOAST table at the end of any test, in any database
#   (also sql/teardown)
package IndexMover::Together;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Oracle ();
use IndexMover::Query;
use PostgreSQL::Test::Cluster;
use Test::Builder;

our @EXPORT = qw(apart);

my $main = $$;
my ($looks, @apart) = (0);

sub apart
{
	my ($node, $db) = @_;
	my $session = IndexMover::Query::connect($node, $db);
	# (the relations of what is created and dropped meanwhile are gone with it)
	my $apart = eval { $session->run(<<'SQL') };
SELECT c.oid::regclass, c.reltablespace, p.oid::regclass, p.reltablespace
  FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.reltoastrelid
  JOIN pg_catalog.pg_class p ON p.oid IN (c.reltoastrelid, i.indexrelid)
 WHERE p.reltablespace <> c.reltablespace
SQL
	$session->end;
	return $apart;
}

# Ask all databases of a server; one that cannot be asked, because it takes no more
# connections, say, is passed over.
sub look
{
	my ($node) = @_;
	return unless $$ == $main && $node->{_pid} && $node->host =~ m{^/};
	local $SIG{ALRM} = sub { die "no answer\n" };
	eval
	{
		alarm 30;
		my $session = IndexMover::Query::connect($node, 'template1');
		my $databases = eval { $session->run('SELECT datname FROM pg_catalog.pg_database WHERE datallowconn') } // '';
		$session->end;
		foreach my $db (split /\n/, $databases)
		{
			my $apart = apart($node, $db) // next;
			$looks++;
			push @apart, map { $node->name . ", $db: $_" } split /\n/, $apart;
		}
	};
	alarm 0;
	return;
}

{
	my $stop = PostgreSQL::Test::Cluster->can('stop');
	my $done_testing = Test::Builder->can('done_testing');
	no warnings 'redefine';

	*PostgreSQL::Test::Cluster::stop = sub { look($_[0]); return $stop->(@_); };

	*Test::Builder::done_testing = sub {
		my ($builder, @rest) = @_;
		if ($$ == $main && !$builder->parent)
		{
			look($_) foreach @PostgreSQL::Test::Cluster::all_nodes;
			$IndexMover::Oracle::count{'databases asked for tables apart from TOAST'} += $looks;
			$builder->is_eq(join("\n", @apart), '', "every table is where its TOAST table and the index of that are, in $looks looks")
			  if $looks || @apart;
		}
		return $builder->$done_testing(@rest);
	};
}

1;
