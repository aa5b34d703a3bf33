/* Two handles of the pool that a test in C is given, which has it to itself. */
#include <swarm.h>

#include "check.h"

static const char *pool;
static swarm_store *one, *two;
static swarm_error error;

/* Opens both. Returns the exit status of a test that cannot begin, or 0. */
static int opens(int argc, char **argv) {
    if (argc != 2) return 2;
    pool = argv[1];
    if (swarm_open(pool, 2, &one, &error) == SWARM_OK && swarm_open(pool, 1, &two, &error) == SWARM_OK) return 0;
    fprintf(stderr, "%s\n", error.message);
    return 3;
}

/* Closes both, and prints how many checks failed. Returns the exit status. */
static int closes(void) {
    CHECK(swarm_close(one, &error) == SWARM_OK && swarm_close(two, &error) == SWARM_OK);
    printf("%d failures\n", failures);
    return failures != 0;
}
