/* One of two processes on a pool, in whatever language the other one is.
 *
 *   peer POOL ME OTHER ROUNDS    for each round waits until the other one's key has its number, and puts it under its own
 *   peer POOL ME                 puts one number after the other until it is killed, and prints each whose put has returned
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <swarm.h>

static swarm_store *store;
static swarm_error error;

static int fail(void) {
    fprintf(stderr, "peer: %s: %s\n", swarm_status_name(error.status), error.message);
    exit(3);
}

static void put(const char *me, long number) {
    char text[32];
    int length = sprintf(text, "%ld", number);
    if (swarm_put(store, me, strlen(me), text, (size_t)length, &error) != SWARM_OK) fail();
}

static long get(const char *other) {
    char text[32];
    size_t length;
    swarm_status status = swarm_get(store, other, strlen(other), text, sizeof text - 1, &length, &error);
    if (status < 0) fail();
    text[length] = 0;
    return status == SWARM_OK ? atol(text) : 0;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 5) return 2;
    if (swarm_open(argv[1], 1, &store, &error) != SWARM_OK) fail();
    if (argc == 3)
        for (long number = 1;; number++) {
            put(argv[2], number);
            printf("%ld\n", number);
            fflush(stdout);
        }
    for (long round = 1; round <= atol(argv[4]); round++) {
        long found;
        while ((found = get(argv[3])) < round) usleep(100);
        if (found != round) {
            fprintf(stderr, "peer: %s has %ld in round %ld\n", argv[3], found, round);
            return 1;
        }
        put(argv[2], round);
    }
    return swarm_close(store, NULL) != SWARM_OK;
}
