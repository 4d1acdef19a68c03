# IndexMover::Fuzz::Random
#   Numbers that a seed and a name decide, so that each session of the fuzzer has its own
#   sequence, whatever the others draw.
package IndexMover::Fuzz::Random;

use strict;
use warnings;

use Digest::MD5 qw(md5);

# xorshift64* after S. Vigna, "An experimental exploration of Marsaglia's xorshift
# generators, scrambled"; the upper half of the product.
sub new
{
	my ($class, @names) = @_;
	my $state = unpack('Q', md5(join "\0", @names)) || 1;
	return bless { state => $state }, $class;
}

sub next
{
	my ($self) = @_;
	use integer;
	no warnings 'portable';
	my $x = $self->{state};
	$x ^= ($x >> 12) & 0x000fffffffffffff;
	$x ^= $x << 25;
	$x ^= ($x >> 27) & 0x0000001fffffffff;
	$self->{state} = $x;
	return (($x * 0x2545f4914f6cdd1d) >> 33) & 0x7fffffff;
}

# 0 to $n - 1
sub below { my ($self, $n) = @_; return $self->next % $n; }

sub chance { my ($self, $percent) = @_; return $self->below(100) < $percent; }

sub pick { my ($self, @list) = @_; return $list[ $self->below(scalar @list) ]; }

# A key of the hash of weights.
sub weighted
{
	my ($self, %weight) = @_;
	my $sum = 0;
	$sum += $_ for values %weight;
	my $n = $self->below($sum);
	foreach my $key (sort keys %weight)
	{
		$n -= $weight{$key};
		return $key if $n < 0;
	}
}

1;
