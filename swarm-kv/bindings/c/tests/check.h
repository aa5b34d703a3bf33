/* What the tests in C check with: it reports what is not so, and counts it. */
#include <stdio.h>

static int failures;

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);  \
            failures++;                                                         \
        }                                                                       \
    } while (0)

/* Text without its zero byte, as an argument. */
#define S(text) (text), sizeof(text) - 1
