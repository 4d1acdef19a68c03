# IndexMover::Test
#   What the TAP tests share.  Node.pm makes servers, Call.pm runs calls in the
#   background, Wait.pm waits for a state instead of sleeping, Query.pm asks without a
#   psql, Oracle.pm has the oracles of sql/include/oracles.sql as test functions, and
#   Together.pm asks at the end for a table apart from its TOAST table: this one brings all
#   of them, and says how much is tested, and on which build.
#
# A test that needs pause points says so with needs_test_points(); scripts/test
# runs it on the build that has them, elsewhere it is skipped.
package IndexMover::Test;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Call;
use IndexMover::Node;
use IndexMover::Oracle;
use IndexMover::Together;
use IndexMover::Wait;
use PostgreSQL::Test::Utils ();
use Test::More;

our @EXPORT = (
	qw(faults long picked needs_faults needs_test_points needs_citus has_test_points has_sanitizer no_finding_ok joined unfolded),
	@IndexMover::Call::EXPORT, @IndexMover::Node::EXPORT, @IndexMover::Oracle::EXPORT, @IndexMover::Together::EXPORT,
	@IndexMover::Wait::EXPORT);

our $TIMEOUT = $IndexMover::Wait::TIMEOUT;
our $SLACK = $IndexMover::Wait::SLACK;

# One regular expression of parts, for messages that are longer than a line.
sub joined { my $all = join '', @_; return qr/$all/; }

# Rows that are expected, of which a long one goes on in a line that begins with a tab.
sub unfolded { my ($rows) = @_; return $rows =~ s/\n\t/ /gr =~ s/\n\z//r; }

# A name that goes on with the one above ("and says so") is shown behind that one, so that a
# failing line alone says what has failed.
{
	no warnings 'redefine';
	my $ok = \&Test::Builder::ok;
	my $above;
	*Test::Builder::ok = sub {
		my ($builder, $passed, $name) = @_;
		my $goes_on = defined $name && $name =~ /^(?:\.\.\.|(?:and|also|but|its?|nor|or|so|then|their|they|which)\b)/;
		if (!$goes_on) { $above = $name }
		elsif (defined $above) { $name = "$above; $name" }
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		return $ok->($builder, $passed, $name);
	};
}

# ---------------------------------------------------------------------------
# How much is tested
# ---------------------------------------------------------------------------

# PG_TEST_EXTRA is core's own switch for what takes long or wants more than a
# server: with "faults" every fault is tried at every step, with "long" what takes a
# quarter of an hour and more.  Without, a test says what it leaves out.
sub extra
{
	my ($word, $left_out) = @_;
	return 1 if ($ENV{PG_TEST_EXTRA} // '') =~ /\b$word\b/;
	note "left out: $left_out (PG_TEST_EXTRA=$word)" if $left_out;
	return 0;
}

sub faults { return extra('faults', @_); }
sub long { return extra('long', @_); }

# Those of the cases for which the block is true; with "faults" all of them.
sub picked(&$@)
{
	my ($is_picked, $what, @cases) = @_;
	return @cases if faults();
	my @picked = grep { $is_picked->() } @cases;
	faults(@cases - @picked . ' of ' . @cases . " $what") if @picked < @cases;
	return @picked;
}

# Skip the whole file without "faults".
sub needs_faults
{
	plan skip_all => 'left out without PG_TEST_EXTRA=faults' unless faults();
	return;
}

# ---------------------------------------------------------------------------
# Builds
# ---------------------------------------------------------------------------

sub library_has
{
	my ($string) = @_;
	chomp(my $dir = `pg_config --pkglibdir`);
	open(my $fh, '<:raw', "$dir/index_mover.so") or return 0;
	local $/;
	return <$fh> =~ /$string/ ? 1 : 0;
}

# Whether the installed library was compiled with pause points.
sub has_test_points { return library_has(qr/index_mover\.test/); }

# Whether it was compiled with AddressSanitizer; scripts/test runs files that ask on
# a build that was, if it can.
sub has_sanitizer { return library_has(qr/__asan_init/); }

# The sanitizers have found nothing: that ends a process, which a test that expects
# errors may not notice.
sub no_finding_ok
{
	my ($node) = @_;
	my @findings;

  SKIP:
	{
		skip 'no sanitizer here', 1 unless has_sanitizer();
		@findings = grep { /runtime error: |ERROR: AddressSanitizer/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile);
		is(join("\n", @findings), '', 'no finding of the sanitizers');
	}
	return !@findings;
}

# Skip the whole file without them.
sub needs_test_points
{
	plan skip_all => 'needs a build with pause points (-DINDEX_MOVER_TEST)'
	  unless has_test_points();
	return;
}

# Skip the whole file unless Citus is installed; scripts/test builds it for those that
# call this, where it can.
sub needs_citus
{
	chomp(my $dir = `pg_config --sharedir`);
	plan skip_all => 'Citus is not installed' unless -f "$dir/extension/citus.control";
	return;
}

1;
