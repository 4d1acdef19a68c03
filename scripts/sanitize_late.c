/*
 * sanitize_late.c
 *	  LD_PRELOAD library for scripts/test-builds: AddressSanitizer in a module of
 *	  a server that knows nothing of it.
 *
 * The module brings the sanitizers' libraries along.  Tricky points: they would
 * read their options from /proc/self/environ, where a backend has put its title
 * by then; and they come too late to see the server's longjmp(), and would take
 * what an error has left on the stack for the boundaries of variables.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>

const char *
__asan_default_options(void)
{
	return "detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=0:verify_asan_link_order=0";
}

const char *
__ubsan_default_options(void)
{
	return "print_stacktrace=1:abort_on_error=1";
}

#define JUMP(name) \
void \
name(struct __jmp_buf_tag *env, int value) \
{ \
	void		(*forget) (void) = (void (*) (void)) dlsym(RTLD_DEFAULT, "__asan_handle_no_return"); \
	void		(*real) (struct __jmp_buf_tag *, int) = \
		(void (*) (struct __jmp_buf_tag *, int)) dlsym(RTLD_NEXT, #name); \
\
	if (forget) \
		forget(); \
	real(env, value); \
	__builtin_unreachable(); \
}

JUMP(longjmp)
JUMP(siglongjmp)
JUMP(__longjmp_chk)
