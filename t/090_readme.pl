# The documentation's examples work: every ```sql block of README.md and of
# docs/*.md is run as it stands there, file by file, each file in one psql
# session and on a database of its own.
#
# A block that can't be run here is written as ```text or ```console instead.
# After <!-- error 12345 --> in the line before, the block must end in an error
# with this SQLSTATE.  Directories (LOCATION '/..') are replaced by ones that
# exist.  What is scheduled with pg_cron goes to a table in its place, and is
# run at the end.
#
# And every message in the source is in docs/reference.md or docs/reports.md, as
# `code`, with .. for what is filled in.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/..";
my @files = ("$top/README.md", sort glob("$top/docs/*.md"));
my $node = new_node('readme', extension => 0);
my $database = 0;

# The ```sql blocks of a text: [line number, SQLSTATE or '', statements]
sub blocks_of
{
	my ($text) = @_;
	my (@blocks, $current);
	my ($error, $number) = ('', 0);
	foreach my $line (split /\n/, $text)
	{
		$number++;
		if ($current)
		{
			if ($line =~ /^\s*```\s*$/) { push @blocks, $current; undef $current; }
			else { $current->[2] .= "$line\n"; }
		}
		elsif ($line =~ /^\s*```sql\s*$/)
		{
			$current = [ $number, $error, '' ];
			$error = '';
		}
		elsif ($line =~ /^<!-- error (\w{5}) -->$/) { $error = $1; }
		elsif ($line =~ /\S/) { $error = ''; }
	}
	die "block without end at line $current->[0]" if $current;
	return @blocks;
}

# What the examples take for granted.
sub make_database
{
	my ($has_extension) = @_;
	my $name = 'readme' . ++$database;
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	my $have = $node->safe_psql('postgres', 'SELECT spcname FROM pg_tablespace');
	foreach my $tablespace ('slow_storage', 'fast_storage')
	{
		# README.md makes one of them itself
		next if $have =~ /^$tablespace$/m || ($tablespace eq 'fast_storage' && !$has_extension);
		my $dir = PostgreSQL::Test::Utils::tempdir();
		$node->safe_psql('postgres', "CREATE TABLESPACE $tablespace LOCATION '$dir'");
	}
	$node->safe_psql($name, 'CREATE EXTENSION index_mover CASCADE') if $has_extension;
	$node->safe_psql($name, <<SQL);
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int) WITH (fillfactor = 100);
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
INSERT INTO pgbench_branches SELECT g, 0 FROM generate_series(1, 10) g;
INSERT INTO pgbench_accounts SELECT g, g / 1000, 0, '' FROM generate_series(1, 10000) g;
CREATE INDEX accounts_bid ON pgbench_accounts (bid) TABLESPACE slow_storage;
CREATE TABLE documents (id int PRIMARY KEY, words tsvector);
CREATE INDEX documents_words ON documents USING gin (words);
INSERT INTO documents SELECT g, to_tsvector('simple', 'a' || g) FROM generate_series(1, 1000) g;
VACUUM ANALYZE;
CREATE SCHEMA cron;
CREATE TABLE cron.stand_in (command text);
CREATE FUNCTION cron.schedule(name text, schedule text, command text) RETURNS bigint LANGUAGE sql
	AS 'INSERT INTO cron.stand_in VALUES (command) RETURNING 1::bigint';
SQL
	return $name;
}

foreach my $file (@files)
{
	my ($name) = $file =~ m{([^/]+)$};
	my $text = slurp_file($file);
	my @blocks = blocks_of($text);
	next if !@blocks;
	# the reader prepares these, wherever they stand in the text
	@blocks = ((grep { $_->[2] =~ /^CREATE (EXTENSION|TABLESPACE)/ } @blocks),
		(grep { $_->[2] !~ /^CREATE (EXTENSION|TABLESPACE)/ } @blocks));

	# The pages other than the README begin where the README ends.
	my $db = make_database($name ne 'README.md');

	# One session, so that psql's variables live on from block to block.
	my $script = "\\set VERBOSITY verbose\n\\pset pager off\n";
	foreach my $block (@blocks)
	{
		my $sql = $block->[2];
		$sql =~ s{LOCATION '/[^']*'}{"LOCATION '" . PostgreSQL::Test::Utils::tempdir() . "'"}ge;
		$script .= "\\warn == $block->[0]\n$sql\n;\n";
	}
	my ($out, $err);
	$node->psql($db, $script, stdout => \$out, stderr => \$err, on_error_stop => 0);
	my %errors;
	my $line = 0;
	foreach (split /\n/, $err)
	{
		if (/^== (\d+)/) { $line = $1; }
		elsif (/(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/) { push @{ $errors{$line} }, $_; }
		elsif (/invalid command|unrecognized|syntax error/) { push @{ $errors{$line} }, $_; }
	}
	foreach my $block (@blocks)
	{
		my ($number, $expected) = @$block;
		my $found = join "\n", @{ $errors{$number} || [] };
		if ($expected) { like($found, qr/$expected/, "$name, line $number: error $expected"); }
		else { is($found, '', "$name, line $number: no error"); }
	}

	# what was scheduled, as pg_cron runs it: one statement a transaction
	foreach my $id (split /\n/, $node->safe_psql($db, 'SELECT ctid FROM cron.stand_in'))
	{
		my $command = $node->safe_psql($db, "SELECT command FROM cron.stand_in WHERE ctid = '$id'");
		my $status = $node->psql($db, $command, stderr => \$err);
		is($status, 0, "$name: scheduled: $command") or diag($err);
	}
	$node->psql($db,
		"SELECT cancel_move(job) FROM index_mover_progress");
	wait_for_no_worker($node, dbname => $db);
}

$node->stop;

# ---- messages ---------------------------------------------------------------
my @known;
foreach my $file (grep { -f $_ } "$top/docs/reference.md", "$top/docs/reports.md")
{
	my $text = slurp_file($file);
	foreach my $span ($text =~ /`([^`\n]{12,})`/g)
	{
		my $pattern = join '.*', map { quotemeta } split /\.\.+/, $span, -1;
		push @known, qr/^$pattern/ if $pattern =~ /\w.*\w/;
	}
}
cmp_ok(scalar(@known), '>', 80, 'messages are described');
foreach my $file (glob("$top/*.c $top/src/*.c"))
{
	my ($name) = $file =~ m{([^/]+)$};
	next if $name eq 'test_points.c';
	my $code = slurp_file($file);
	my @unknown;
	while ($code =~ /\berrmsg\(\s*((?:"(?:[^"\\]|\\.)*"|U?INT64_FORMAT|\s+)+)/g)
	{
		my $message = $1 =~ s/U?INT64_FORMAT/"%d"/gr;
		$message = join '', $message =~ /"((?:[^"\\]|\\.)*)"/g;
		$message =~ s/\\"/"/g;
		$message =~ s/%%/\0/g;
		$message =~ s/%[-+ 0-9.]*l*[a-zA-Z]/X/g;
		$message =~ s/\0/%/g;
		# what comes from elsewhere as a whole
		next if $message eq 'X';
		push @unknown, $message unless grep { $message =~ $_ } @known;
	}
	is(join("\n", @unknown), '', "$name: its messages are described");
}
done_testing();
