# IndexMover::Programs
#   What PostgreSQL's own programs say, of all there is: pg_amcheck of every table
#   and index of a database, catalogs included, and pg_verifybackup of a backup.
#
#   amcheck_ok($node, 'name');
#   backup_ok($node, 'backup', 'name');          # a backup that $node->backup('backup') took
#   backup_ok($node, $node->data_dir, 'name');   # or a directory that was never started
#
# Where a program is not installed, its assertion is skipped, which says so.
# t/002_oracles_online.pl shows what they see.
package IndexMover::Programs;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Test ();
use IPC::Run ();
use Test::More;

our @EXPORT = qw(has_program amcheck_ok backup_ok);

# The path of one of the server's programs, '' if it is not there.
sub has_program
{
	my ($program) = @_;
	chomp(my $dir = `pg_config --bindir`);
	return -x "$dir/$program" ? "$dir/$program" : '';
}

# Run it: does it find nothing to complain of?
sub finds_nothing_ok
{
	my ($program, $arguments, $count, $name) = @_;
	my $path = has_program($program);
  SKIP:
	{
		skip "$program is not installed", 1 unless $path;
		my $said = '';
		my $right = IPC::Run::run([ $path, @$arguments ], '<', \'', '>&', \$said);
		$IndexMover::Oracle::count{$count}++;
		ok($right, "$name: $program") or diag $said;
		return $right;
	}
	return 1;
}

# pg_amcheck looks at the tables, and at the btrees as closely as it can, which
# on a standby is less: what is missing in an index, what contradicts itself, and
# from 17 on what is twice in a unique index.
sub amcheck_ok
{
	my ($node, $name, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	my ($standby, $version) = split /\|/, $node->safe_psql($db, "SELECT pg_is_in_recovery(), current_setting('server_version_num')");
	return finds_nothing_ok('pg_amcheck',
		[
			'--host', $node->host, '--port', $node->port, '--heapallindexed',
			$standby eq 't' ? () : ('--parent-check', '--rootdescend'),
			$version >= 170000 ? '--checkunique' : (), $db
		],
		'databases checked by pg_amcheck', $name);
}

# pg_verifybackup: every file of the backup is there with the checksum that its
# manifest has, none beside them, and the WAL that it needs can be read.  In the
# directory of a server that init_from_backup() has made, the configuration is another.
sub backup_ok
{
	my ($node, $backup, $name) = @_;
	my @arguments = $backup =~ m{^/}
	  ? ('--no-parse-wal', '--ignore', 'postgresql.conf', '--ignore', 'pg_hba.conf', $backup)
	  : $node->backup_dir . "/$backup";
	return finds_nothing_ok('pg_verifybackup', \@arguments, 'base backups checked by pg_verifybackup', $name);
}

1;
