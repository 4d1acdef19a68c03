# What a database sets for its sessions does not reach the worker: neither a role
# to be, which could have more or less rights than the job's own, nor timeouts,
# nor another encoding for messages.
#
# Fault (replication): other encodings; messages in another language (also 054)
use strict;
use warnings;
use utf8;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('database_settings');
my $TARGET = 'regress_fast';
my $name = "uu_\x{e9}";

$node->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_owner NOLOGIN;
CREATE ROLE regress_nobody LOGIN;
CREATE ROLE regress_limited LOGIN;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_limited;
GRANT USAGE ON SCHEMA public TO regress_limited;
GRANT CREATE ON TABLESPACE regress_fast TO regress_limited;
GRANT USAGE ON SCHEMA public TO regress_owner;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_owner;
GRANT CREATE ON TABLESPACE regress_fast TO regress_owner;
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 100);
CREATE INDEX t_i ON t (i);
ALTER TABLE t OWNER TO regress_owner;
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

# a role with fewer rights than the job's
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET role = regress_nobody');
is($node->safe_psql('postgres',
		"SET ROLE regress_owner; SELECT status, detail FROM move_indexes('t', '$TARGET', 'rebuild')"),
	'moved|', 'a role in the settings of the database takes no rights away');

# and one with more: what the job's role has lost meanwhile is lost
$node->safe_psql('template1', 'ALTER DATABASE postgres SET role = ' . $node->safe_psql('template1', 'SELECT current_user'));
$node->safe_psql('postgres', <<'SQL');
SET ROLE regress_owner;
SELECT status FROM move_indexes('t', 'pg_default');
BEGIN;
SELECT status FROM move_indexes('t', 'regress_fast', wait => false);
RESET ROLE;
REVOKE CREATE ON TABLESPACE regress_fast FROM regress_owner;
COMMIT;
SQL
my $job = $node->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history');
like(($node->psql('postgres', "CALL wait_for_move($job)"))[2], qr/ermission denied for tablespace/,
	'a job whose owner has lost the privilege: CALL wait_for_move() says so');
is($node->safe_psql('postgres', "SELECT status, sqlstate, role FROM index_mover_history WHERE job = $job"),
	'failed|42501|regress_owner', 'a job whose owner has lost the privilege: its moves fail');

# nor does a session's user, which core's connection applies before 17
my $super = $node->safe_psql('template1', 'SELECT current_user');
my $as_super = "SET SESSION AUTHORIZATION $super; SELECT status, detail FROM move_indexes('t', '%s', 'rebuild')";
$node->safe_psql('template1', 'ALTER DATABASE postgres RESET role; ALTER DATABASE postgres SET session_authorization = regress_nobody');
is($node->safe_psql('postgres', sprintf $as_super, $_), 'moved|', "session_authorization in the settings of the database, to $_")
  foreach qw(regress_fast pg_default);
$node->safe_psql('template1', 'ALTER DATABASE postgres RESET session_authorization');

# what a role may write to temporary files is its job's limit, too
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE sorted AS SELECT (i * 7919) % 100003 AS i FROM generate_series(1, 60000) i;
CREATE INDEX ON sorted (i);
ALTER ROLE regress_limited SET temp_file_limit = 1;
ALTER ROLE regress_limited SET maintenance_work_mem = 1024;
ALTER ROLE regress_limited SET max_parallel_maintenance_workers = 0;
ALTER TABLE sorted OWNER TO regress_limited;
SQL
is($node->safe_psql('postgres', "SELECT status, sqlstate FROM move_indexes('sorted', 'regress_fast', 'rebuild')",
		extra_params => [ '-U', 'regress_limited' ]), 'failed|53400', "the role's temp_file_limit");

# ---- every setting that a session can have ------------------------------------------
# A setting changes nothing in a worker (worker_settings in src/worker/move_worker.c), or
# is here with the reason why it may.  A new one of a new version is named as a failure.
my %kept = map { my $why = $_; map { $_ => $why->[0] } split ' ', $why->[1] } (
	[ 'a wish of the cluster or the role: how much memory, disk and processors, and how fast', q{
		backend_flush_after commit_siblings deadlock_timeout effective_cache_size effective_io_concurrency file_copy_method
		hash_mem_multiplier io_combine_limit logical_decoding_work_mem maintenance_io_concurrency max_parallel_workers
		max_parallel_workers_per_gather max_stack_depth min_parallel_index_scan_size min_parallel_table_scan_size
		parallel_leader_participation synchronize_seqscans temp_buffers temp_tablespaces
		vacuum_buffer_usage_limit vacuum_cost_delay vacuum_cost_limit vacuum_cost_page_dirty vacuum_cost_page_hit
		vacuum_cost_page_miss wal_compression wal_init_zero wal_recycle wal_skip_threshold work_mem } ],
	[ 'given by the job', 'maintenance_work_mem max_parallel_maintenance_workers temp_file_limit' ],
	[ 'what is logged, measured and shown', q{
		application_name backtrace_functions compute_query_id debug_pretty_print debug_print_parse debug_print_plan
		debug_print_raw_parse debug_print_rewritten lc_messages log_autoanalyze_min_duration log_connections log_disconnections
		log_duration log_error_verbosity log_executor_stats log_lock_failures log_lock_waits log_min_duration_sample
		log_min_duration_statement log_min_error_statement log_min_messages log_parameter_max_length
		log_parameter_max_length_on_error log_parser_stats log_planner_stats log_replication_commands log_statement
		log_statement_sample_rate log_statement_stats log_temp_files log_transaction_sample_rate timing_clock_source trace_notify
		trace_sort track_cost_delay_timing track_counts track_functions track_io_timing track_wal_io_timing update_process_title
		debug_copy_parse_plan_trees debug_raw_expression_coverage_test debug_write_read_parse_plan_trees
		wal_consistency_checking debug_discard_caches jit_debugging_support jit_dump_bitcode jit_profiling_support } ],
	[ 'a function of an index, or an event trigger, has it from a session, too', q{
		array_nulls backslash_quote bytea_output check_function_bodies composite_type_mismatch constraint_exclusion
		cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost createrole_self_grant cursor_tuple_fraction DateStyle
		debug_parallel_query default_statistics_target default_table_access_method default_text_search_config
		default_toast_compression enable_async_append enable_bitmapscan enable_distinct_reordering enable_eager_aggregate
		enable_gathermerge enable_group_by_reordering enable_hashagg enable_hashjoin enable_incremental_sort
		enable_indexonlyscan enable_indexscan enable_material enable_memoize enable_mergejoin enable_nestloop
		enable_parallel_append enable_parallel_hash enable_partition_pruning enable_partitionwise_aggregate
		enable_partitionwise_join enable_presorted_aggregate enable_self_join_elimination enable_seqscan enable_sort
		enable_tidscan escape_string_warning event_triggers extra_float_digits force_parallel_mode from_collapse_limit geqo
		geqo_effort geqo_generations geqo_pool_size geqo_seed geqo_selection_bias geqo_threshold gin_fuzzy_search_limit
		gin_pending_list_limit icu_validation_level IntervalStyle jit jit_above_cost jit_expressions jit_inline_above_cost
		jit_optimize_above_cost jit_tuple_deforming join_collapse_limit lc_monetary lc_numeric lc_time lo_compat_privileges
		min_eager_agg_group_size parallel_setup_cost parallel_tuple_cost plan_cache_mode quote_all_identifiers random_page_cost
		recursive_worktable_factor restrict_nonsystem_relation_kind seq_page_cost standard_conforming_strings
		stats_fetch_consistency TimeZone timezone_abbreviations transform_null_equals xmlbinary xmloption } ],
	[ 'for one transaction', 'transaction_deferrable transaction_isolation transaction_read_only' ],
	[ 'for clients, for connecting, or for commands that a worker has not', q{
		allow_in_place_tablespaces authentication_timeout client_connection_check_interval
		debug_logical_replication_streaming dynamic_library_path extension_control_path extension_destdir
		ignore_system_indexes local_preload_libraries md5_password_warnings output_plugin_libraries password_encryption post_auth_delay
		scram_iterations session_preload_libraries tcp_keepalives_count tcp_keepalives_idle tcp_keepalives_interval
		tcp_user_timeout vacuum_failsafe_age vacuum_freeze_min_age vacuum_freeze_table_age
		vacuum_max_eager_freeze_failure_rate vacuum_multixact_failsafe_age vacuum_multixact_freeze_min_age
		vacuum_multixact_freeze_table_age vacuum_truncate wal_receiver_timeout wal_sender_shutdown_timeout wal_sender_timeout } ],
	[ q{for core's own processes},
		'archive_timeout checkpoint_timeout idle_replication_slot_timeout io_worker_idle_timeout' ]);

# Strings that are not as by default; others stay.  (1 kB is too little for any rebuild.)
my %values = (
	temp_file_limit => 100000, vacuum_buffer_usage_limit => 128,
	client_encoding => 'latin1', createrole_self_grant => 'set', DateStyle => 'SQL, DMY', default_tablespace => 'regress_slow',
	default_text_search_config => 'pg_catalog.simple', local_preload_libraries => 'nowhere', restrict_nonsystem_relation_kind => 'view',
	search_path => 'nowhere', session_preload_libraries => 'nowhere', temp_tablespaces => 'regress_slow', TimeZone => 'Asia/Kolkata',
	wal_consistency_checking => 'all');
my (%hostile, %ordinary, @unknown);
foreach my $row (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT name, vartype, coalesce(reset_val, ''), context ~ '^(user|superuser)$',
	CASE WHEN vartype = 'bool' THEN CASE reset_val WHEN 'on' THEN 'off' ELSE 'on' END
		 WHEN vartype = 'enum' THEN (SELECT v FROM unnest(enumvals) WITH ORDINALITY u(v, n) WHERE v <> reset_val ORDER BY n DESC LIMIT 1)
		 WHEN vartype = 'string' THEN ''
		 WHEN reset_val <> '1' AND 1 BETWEEN min_val::numeric AND max_val::numeric THEN '1'
		 WHEN reset_val <> min_val THEN min_val ELSE max_val END
  FROM pg_settings WHERE (context IN ('user', 'superuser', 'backend', 'superuser-backend') OR name LIKE '%\_timeout')
   AND category <> 'Customized Options' AND name NOT LIKE 'index_mover.%'
SQL
{
	my ($setting, $type, $reset, $settable, $value) = split /\|/, $row, 5;
	$value = $values{$setting} // ($type eq 'string' ? '' : $value);
	# (with the first, a server with assertions takes a minute to connect; 19 refuses the second; the others are for the
	# first statement of a transaction)
	if ($settable ne 't'
		|| $value eq ''
		|| $setting =~ /^(debug_discard_caches|standard_conforming_strings|transaction_deferrable|transaction_isolation)$/)
	{
		push @unknown, $setting unless $kept{$setting};
		next;
	}
	($hostile{$setting}, $ordinary{$setting}) = ($value, $reset);
}
is("@unknown", '', 'settings that cannot be tried here: the reason is known');
$node->safe_psql('template1', join '', map { "ALTER DATABASE postgres SET $_ = '$hostile{$_}';\n" } sort keys %hostile);

# (they are for the worker: this session has to get somewhere.  One stays, by which f()
# knows where it is)
local $ENV{PGOPTIONS} = join ' ',
  map { "-c $_=" . $ordinary{$_} =~ s/([\\ ])/\\$1/gr } grep { $_ ne 'session_replication_role' } sort keys %ordinary;
my ($stdout, $stderr);
my $setup = "SET client_encoding = utf8;\n";
{
	$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION seen(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF pg_catalog.current_setting('session_replication_role') = 'origin' THEN	-- the worker
		RAISE NOTICE 'seen: %', (SELECT string_agg(name || '=' || setting, ';') FROM pg_settings);
	END IF;
	RETURN i;
END $$;
CREATE TABLE seen (i int);
INSERT INTO seen VALUES (1);
CREATE INDEX seen_i ON seen (seen(i)) TABLESPACE regress_slow;
SQL
	$node->psql('postgres', "SELECT status FROM move_indexes('seen', '$TARGET', 'rebuild')", stdout => \$stdout, stderr => \$stderr);
	is($stdout, 'moved', 'a move with all of them') or diag $stderr;
	my $sql = q{SELECT DISTINCT status, method FROM move_table('seen', 'regress_slow', indexes => true, freeze_first => true)};
	is($node->safe_psql('postgres', $sql), 'moved|copy', 'and of the table, by copy');
	my ($seen) = $stderr =~ /^psql:.*NOTICE:  seen: (.*)$/m;
	my %seen = map { /(.*?)=(.*)/s ? ($1 => $2) : () } split /;/, $seen;
	my @reached = grep { $seen{$_} eq $hostile{$_} } sort keys %hostile;
	is("@{[ grep { !$kept{$_} } @reached ]}", '', 'no setting of the database reaches a worker without a reason');
	my %reached = map { $_ => 1 } @reached;
	note 'in the list, and does not reach it: ', join ' ', grep { !$reached{$_} && $kept{$_} } sort keys %hostile;
}

# "é" is one byte in latin1, and "€" is not there at all
my $sql = $setup . <<SQL;
CREATE FUNCTION f(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
BEGIN
	IF pg_catalog.current_setting('session_replication_role') = 'origin' THEN	-- the worker
		RAISE NOTICE '\x{e9} \x{20ac}';
		IF i = 2 THEN RAISE EXCEPTION '\x{20ac} \x{e9}'; END IF;
	END IF;
	RETURN i;
END \$\$;
CREATE TABLE uu (i int);
INSERT INTO uu VALUES (1);
CREATE INDEX "$name" ON uu (f(i)) TABLESPACE regress_slow;
SELECT status, detail FROM move_indexes('uu', '$TARGET', 'rebuild');
SQL
utf8::encode($sql);
my $status = $node->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr);
utf8::decode($_) for ($stdout, $stderr);
is($status, 0, 'a move in a database with hostile settings');
is($stdout, 'moved|', 'a database with hostile settings: moved');
like($stderr, qr/NOTICE:  \x{e9} \x{20ac}/, 'a database with hostile settings: its messages arrive');
$node->safe_psql('postgres', "$setup SELECT oracle.remember_keys('uu'), oracle.remember_metadata('uu')");

$sql = $setup . <<SQL;
INSERT INTO uu VALUES (2);
SELECT status, sqlstate, detail FROM move_indexes('uu', 'regress_slow', 'rebuild');
SQL
$status = $node->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr);
utf8::decode($_) for ($stdout, $stderr);
is($status, 0, 'a move that fails there');
is($stdout, "failed|P0001|\x{20ac} \x{e9}", 'a move that fails in such a database: its row says why');
like($stderr, qr/WARNING:  index "public.$name" was not moved\nDETAIL:  \x{20ac} \x{e9}/,
	'a move that fails in such a database: the WARNING says why');
delete $ENV{PGOPTIONS};
$node->safe_psql('template1', 'ALTER DATABASE postgres RESET ALL');
survived_ok($node, 't', 'database settings', "SELECT status FROM move_indexes('t', '$TARGET', 'rebuild')");
# (its function refuses 2 to who is no replica, as the sessions of the database were)
$node->safe_psql('postgres', 'DELETE FROM uu WHERE i = 2');
$node->safe_psql('postgres', 'VACUUM uu');
survived_ok($node, 'uu', 'messages', "SELECT status FROM move_indexes('uu', 'regress_slow', 'rebuild')");
done_testing();
