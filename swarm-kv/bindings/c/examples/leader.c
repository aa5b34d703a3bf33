/* Of the processes that run this one leads: the one that holds a lock. It works for a second, and lets the next one lead; if it is killed, the
 * next one leads as well. A process that waits prints who leads.
 *
 *   cc leader.c $(pkg-config --cflags --libs swarm) -o leader; for n in 1 2 3; do ./leader /dev/shm/pool & done; wait
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <swarm.h>

static const char lock[] = "leadership", leader[] = "leader", steps[] = "steps";

static int failed(const swarm_error *error) {
    fprintf(stderr, "leader: %s: %s\n", swarm_status_name(error->status), error->message);
    return 3;
}

/* Leads for a second, or until it is evicted. What it does is counted: swarm_increment does each count once. */
static swarm_status lead(swarm_store *store, swarm_guard *guard, swarm_error *error) {
    char me[64];
    const int length = snprintf(me, sizeof me, "process %ld, with token %" PRIu64, (long)getpid(), swarm_guard_token(guard));
    swarm_status status = swarm_put(store, leader, strlen(leader), me, (size_t)length, error);
    for (int step = 0; step < 100 && status == SWARM_OK; step++) {
        int64_t sum;
        status = swarm_increment(store, steps, strlen(steps), 1, &sum, error);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        if (status == SWARM_OK) status = swarm_guard_is_held(guard, error);
    }
    return status;
}

/* Waits for its turn, and prints who leads meanwhile. It takes a new place in the queue each tenth of a second: a program that has to be served in its
 * turn waits without end, in a thread of its own. */
static int follow(swarm_store *store) {
    swarm_error error;
    swarm_watch *watch;
    swarm_guard *guard = NULL;
    swarm_status status;
    if (swarm_watch_open(store, leader, strlen(leader), &watch, &error) < 0) return failed(&error);
    while ((status = swarm_lock_acquire(store, lock, strlen(lock), 100, &guard, &error)) == SWARM_TIMED_OUT) {
        const void *who;
        size_t length;
        status = swarm_watch_next(watch, 0, &who, &length, &error);
        if (status < 0) break;
        if (status == SWARM_OK) printf("process %ld: %.*s leads\n", (long)getpid(), (int)length, (const char *)who);
        fflush(stdout);
    }
    swarm_watch_close(watch, NULL);
    if (status < 0) return failed(&error);
    status = lead(store, guard, &error);
    if (status == SWARM_LOST) printf("process %ld was evicted\n", (long)getpid());
    if (status >= 0) status = swarm_guard_release(guard, &error);
    else swarm_guard_release(guard, NULL);
    return status < 0 && status != SWARM_ERROR_TAKEN_AWAY ? failed(&error) : 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: leader POOL\n");
        return 2;
    }
    swarm_error error;
    swarm_store *store;
    if (swarm_open(argv[1], 1, &store, &error) < 0) return failed(&error);
    const int result = follow(store);
    swarm_close(store, NULL);
    return result;
}
