# The fuzzer: worlds and calls at random, and oracles (scripts/fuzz, t/lib/IndexMover/Fuzz.pm).
#
# Fault (processes): calls of every function in every context at random, beside DDL, cancels, kills and restarts
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Fuzz;
use IndexMover::Test;
use Test::More;

plan skip_all => 'scripts/fuzz runs it' unless $ENV{INDEX_MOVER_FUZZ};
my %options = map { split /=/, $_, 2 } split /\n/, $ENV{INDEX_MOVER_FUZZ};
$options{seeds} = [ split ' ', $options{seeds} ] if $options{seeds};
fuzz(%options);
done_testing();
