/* Locks and the like, and watches, from C: what they come to, kills, forks. Its argument is a pool that it has to itself. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handles.h"

/* Milliseconds: so long that what is waited for comes, and so short that it does not. */
#define LONG 60000
#define SHORT 20

/* How many hold it and wait for it. */
static void has(const char *name, size_t holders, size_t waiters) {
    swarm_queue queue;
    CHECK(swarm_queue_view(one, name, strlen(name), &queue, &error) == SWARM_OK);
    CHECK(queue.holder_count == holders && queue.waiter_count == waiters);
}

static void one_at_a_time_holds_a_lock(void) {
    swarm_guard *guard, *none;
    swarm_queue queue;
    CHECK(swarm_queue_view(one, S("lock"), &queue, &error) == SWARM_ABSENT && queue.holder_count == 0);
    CHECK(swarm_lock_acquire(one, S("lock"), SWARM_FOREVER, &guard, &error) == SWARM_OK);
    CHECK(swarm_guard_token(guard) == 1 && !swarm_guard_is_unsettled(guard));
    CHECK(swarm_guard_is_held(guard, &error) == SWARM_OK);
    CHECK(swarm_queue_view(two, S("lock"), &queue, &error) == SWARM_OK && queue.holder_count == 1);
    CHECK(queue.token == 1 && queue.holders[0].token == 1 && queue.holders[0].weight == 1 && queue.holders[0].seat.session);
    CHECK(swarm_lock_acquire(two, S("lock"), 0, &none, &error) == SWARM_TIMED_OUT && !none);
    CHECK(swarm_lock_acquire(two, S("lock"), SHORT, &none, &error) == SWARM_TIMED_OUT && !none);
    has("lock", 1, 0);
    CHECK(swarm_guard_release(guard, &error) == SWARM_OK);
    CHECK(swarm_lock_acquire(two, S("lock"), LONG, &guard, &error) == SWARM_OK && swarm_guard_token(guard) == 2);
    CHECK(swarm_once_done(guard, &error) == SWARM_ERROR_ARGUMENT);
    has("lock", 0, 0);
    CHECK(swarm_once_begin(two, S("lock"), LONG, &none, &error) == SWARM_ERROR_OTHER_KIND && !none);
    CHECK(strstr(error.message, "lock") && !error.may_have_taken_effect);
    CHECK(swarm_put(one, S("text"), S("text"), NULL) == SWARM_OK);
    CHECK(swarm_queue_view(one, S("text"), &queue, &error) == SWARM_ERROR_OTHER_KIND);
}

static void an_evicted_holder_gets_an_error(void) {
    swarm_guard *guard, *next;
    const void *keys[] = {"account 1", "2"};
    const size_t lengths[] = {9, 1};
    CHECK(swarm_lock_acquire(one, S("lock"), LONG, &guard, &error) == SWARM_OK);
    CHECK(swarm_lock_evict(two, S("lock"), swarm_guard_token(guard), &error) == SWARM_OK);
    CHECK(swarm_lock_evict(two, S("lock"), swarm_guard_token(guard), &error) == SWARM_ABSENT);
    CHECK(swarm_lock_acquire(two, S("lock"), LONG, &next, &error) == SWARM_OK);
    CHECK(swarm_guard_token(next) > swarm_guard_token(guard) && swarm_guard_is_unsettled(next));
    CHECK(swarm_guard_is_held(guard, &error) == SWARM_LOST && swarm_guard_is_held(next, &error) == SWARM_OK);
    CHECK(swarm_guard_settle(guard, keys, lengths, 2, &error) == SWARM_ERROR_TAKEN_AWAY);
    CHECK(swarm_guard_settle(next, keys, lengths, 2, &error) == SWARM_OK && !swarm_guard_is_unsettled(next));
    CHECK(swarm_guard_release(guard, &error) == SWARM_ERROR_TAKEN_AWAY && strstr(error.message, "token"));
    CHECK(swarm_guard_release(next, &error) == SWARM_OK);
}

static void many_read_and_permits_are_counted(void) {
    swarm_guard *reader, *other, *none;
    CHECK(swarm_rwlock_read(one, S("shared"), LONG, &reader, &error) == SWARM_OK);
    CHECK(swarm_rwlock_read(two, S("shared"), LONG, &other, &error) == SWARM_OK);
    CHECK(swarm_rwlock_write(two, S("shared"), SHORT, &none, &error) == SWARM_TIMED_OUT);
    CHECK(swarm_guard_release(reader, &error) == SWARM_OK);
    CHECK(swarm_rwlock_evict(one, S("shared"), swarm_guard_token(other), &error) == SWARM_OK);
    CHECK(swarm_guard_release(other, &error) == SWARM_ERROR_TAKEN_AWAY);
    CHECK(swarm_rwlock_write(two, S("shared"), LONG, &other, &error) == SWARM_OK);
    CHECK(swarm_rwlock_read(one, S("shared"), SHORT, &none, &error) == SWARM_TIMED_OUT);
    CHECK(swarm_guard_release(other, &error) == SWARM_OK);

    CHECK(swarm_semaphore_acquire(one, S("permits"), 3, 2, LONG, &reader, &error) == SWARM_OK);
    CHECK(swarm_semaphore_acquire(two, S("permits"), 3, 1, LONG, &other, &error) == SWARM_OK);
    CHECK(swarm_semaphore_acquire(two, S("permits"), 3, 1, SHORT, &none, &error) == SWARM_TIMED_OUT);
    CHECK(swarm_semaphore_acquire(two, S("permits"), 2, 1, SHORT, &none, &error) == SWARM_ERROR_OTHER_KIND);
    CHECK(swarm_semaphore_acquire(two, S("permits"), 0, 1, SHORT, &none, &error) == SWARM_ERROR_ARGUMENT);
    CHECK(swarm_semaphore_acquire(two, S("permits"), 3, 4, SHORT, &none, &error) == SWARM_ERROR_ARGUMENT);
    CHECK(swarm_semaphore_acquire(two, S("permits"), 33, 1, SHORT, &none, &error) == SWARM_ERROR_ARGUMENT);
    CHECK(swarm_semaphore_evict(two, S("permits"), 3, swarm_guard_token(reader), &error) == SWARM_OK);
    CHECK(swarm_guard_release(reader, &error) == SWARM_ERROR_TAKEN_AWAY);
    CHECK(swarm_guard_release(other, &error) == SWARM_OK);
}

static void one_does_what_is_done_once(void) {
    swarm_guard *doing, *none;
    CHECK(swarm_once_begin(one, S("once"), LONG, &doing, &error) == SWARM_OK);
    CHECK(swarm_once_begin(two, S("once"), SHORT, &none, &error) == SWARM_TIMED_OUT && !none);
    CHECK(swarm_guard_release(doing, &error) == SWARM_OK);
    CHECK(swarm_once_begin(two, S("once"), LONG, &doing, &error) == SWARM_OK && swarm_guard_token(doing) == 2);
    CHECK(swarm_guard_is_held(doing, &error) == SWARM_OK);
    CHECK(swarm_once_evict(one, S("once"), 2, &error) == SWARM_OK);
    CHECK(swarm_once_done(doing, &error) == SWARM_ERROR_TAKEN_AWAY);
    CHECK(swarm_once_begin(two, S("once"), LONG, &doing, &error) == SWARM_OK);
    CHECK(swarm_once_done(doing, &error) == SWARM_OK);
    CHECK(swarm_once_begin(one, S("once"), SWARM_FOREVER, &none, &error) == SWARM_DONE && !none);
}

static void *arrive(void *member) {
    swarm_meeting meeting;
    CHECK(swarm_member_wait(member, LONG, &meeting, NULL) == SWARM_OK && meeting.member_count == 2);
    return NULL;
}

static void latches_open_and_members_meet(void) {
    uint64_t left;
    CHECK(swarm_latch_wait(one, S("latch"), 2, SHORT, &error) == SWARM_TIMED_OUT);
    CHECK(swarm_latch_count_down(one, S("latch"), 2, 1, &left, &error) == SWARM_OK && left == 1);
    CHECK(swarm_latch_count_down(two, S("latch"), 2, 0, &left, &error) == SWARM_OK && left == 1);
    CHECK(swarm_latch_count_down(two, S("latch"), 2, 5, &left, &error) == SWARM_OK && left == 0);
    CHECK(swarm_latch_wait(one, S("latch"), 2, SWARM_FOREVER, &error) == SWARM_OK);

    swarm_member *mine, *theirs;
    swarm_meeting meeting;
    CHECK(swarm_barrier_view(one, S("barrier"), 2, &meeting, &error) == SWARM_OK && meeting.member_count == 0);
    CHECK(swarm_barrier_join(one, S("barrier"), 2, &mine, &error) == SWARM_OK);
    CHECK(swarm_member_wait(mine, SHORT, &meeting, &error) == SWARM_TIMED_OUT && meeting.member_count == 0);
    CHECK(swarm_barrier_join(two, S("barrier"), 2, &theirs, &error) == SWARM_OK);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, arrive, theirs) == 0);
    CHECK(swarm_member_wait(mine, LONG, &meeting, &error) == SWARM_OK && meeting.member_count == 2 && meeting.generation == 1);
    pthread_join(thread, NULL);
    const swarm_seat seat = swarm_member_seat(theirs);
    CHECK(swarm_barrier_evict(one, S("barrier"), 2, seat, &error) == SWARM_OK);
    CHECK(swarm_barrier_evict(one, S("barrier"), 2, seat, &error) == SWARM_ABSENT);
    CHECK(swarm_member_wait(theirs, LONG, NULL, &error) == SWARM_ERROR_TAKEN_AWAY);
    CHECK(swarm_member_leave(theirs, &error) == SWARM_ERROR_TAKEN_AWAY);
    CHECK(swarm_barrier_view(two, S("barrier"), 2, &meeting, &error) == SWARM_OK && meeting.member_count == 1);
    CHECK(meeting.members[0].session == swarm_member_seat(mine).session);
    CHECK(swarm_barrier_view(two, S("barrier"), 3, &meeting, &error) == SWARM_ERROR_OTHER_KIND);
    CHECK(swarm_member_leave(mine, &error) == SWARM_OK);
}

static void *write_a_hundred(void *unused) {
    for (int n = 1; n <= 100; n++) CHECK(swarm_put(two, S("watched"), &n, sizeof n, NULL) == SWARM_OK);
    return unused;
}

static void a_watch_returns_the_last_value(void) {
    swarm_watch *watch;
    const void *value = "";
    size_t length = 1;
    CHECK(swarm_watch_open(one, S("watched"), &watch, &error) == SWARM_OK);
    CHECK(swarm_watch_next(watch, SWARM_FOREVER, &value, &length, &error) == SWARM_ABSENT && !value && !length);
    CHECK(swarm_watch_next(watch, SHORT, &value, &length, &error) == SWARM_TIMED_OUT && !value && !length);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_a_hundred, NULL) == 0);
    for (int last = 0; last < 100 && !failures;) {
        int n = 0;
        CHECK(swarm_watch_next(watch, LONG, &value, &length, &error) == SWARM_OK && length == sizeof n);
        if (value) memcpy(&n, value, sizeof n);
        CHECK(n > last);
        last = n;
    }
    pthread_join(thread, NULL);
    CHECK(swarm_put(two, S("watched"), NULL, 0, NULL) == SWARM_OK);
    CHECK(swarm_watch_next(watch, LONG, &value, &length, &error) == SWARM_OK && value && !length);
    CHECK(swarm_delete(two, S("watched"), NULL) == SWARM_OK);
    CHECK(swarm_watch_next(watch, LONG, NULL, NULL, &error) == SWARM_ABSENT);
    CHECK(swarm_watch_close(watch, &error) == SWARM_OK);
}

static void null_and_what_cannot_be_are_errors(void) {
    swarm_guard *guard = (swarm_guard *)&failures;
    swarm_member *member;
    swarm_watch *watch;
    swarm_meeting meeting;
    uint64_t left;
    const void *keys[] = {NULL};
    const size_t lengths[] = {1};
#define REFUSED(call) CHECK((call) == SWARM_ERROR_ARGUMENT && error.status == SWARM_ERROR_ARGUMENT && error.message[0])
    REFUSED(swarm_lock_acquire(NULL, S("lock"), LONG, &guard, &error));
    CHECK(!guard);
    REFUSED(swarm_lock_acquire(one, NULL, 4, LONG, &guard, &error));
    REFUSED(swarm_lock_acquire(one, "", 0, LONG, &guard, &error));
    REFUSED(swarm_lock_acquire(one, S("lock"), LONG, NULL, &error));
    REFUSED(swarm_rwlock_read(NULL, S("shared"), LONG, &guard, &error));
    REFUSED(swarm_once_begin(NULL, S("once"), LONG, &guard, &error));
    REFUSED(swarm_once_done(NULL, &error));
    REFUSED(swarm_lock_evict(NULL, S("lock"), 1, &error));
    REFUSED(swarm_queue_view(one, S("lock"), NULL, &error));
    REFUSED(swarm_guard_is_held(NULL, &error));
    REFUSED(swarm_guard_settle(NULL, keys, lengths, 1, &error));
    CHECK(swarm_lock_acquire(one, S("lock"), LONG, &guard, &error) == SWARM_OK);
    REFUSED(swarm_guard_settle(guard, NULL, lengths, 1, &error));
    REFUSED(swarm_guard_settle(guard, keys, NULL, 1, &error));
    REFUSED(swarm_guard_settle(guard, keys, lengths, 1, &error));
    REFUSED(swarm_guard_settle(guard, keys, lengths, (size_t)-1, &error));
    CHECK(swarm_guard_settle(guard, NULL, NULL, 0, &error) == SWARM_OK);
    CHECK(swarm_guard_release(guard, &error) == SWARM_OK);
    CHECK(swarm_guard_token(NULL) == 0 && !swarm_guard_is_unsettled(NULL) && swarm_guard_release(NULL, &error) == SWARM_OK);
    REFUSED(swarm_latch_count_down(one, S("latch"), 1, 1, NULL, &error));
    REFUSED(swarm_latch_count_down(NULL, S("latch"), 1, 1, &left, &error));
    REFUSED(swarm_latch_wait(NULL, S("latch"), 1, 1, &error));
    REFUSED(swarm_barrier_join(NULL, S("barrier"), 1, &member, &error));
    REFUSED(swarm_barrier_join(one, S("barrier"), 1, NULL, &error));
    REFUSED(swarm_member_wait(NULL, 1, &meeting, &error));
    REFUSED(swarm_barrier_view(one, S("barrier"), 1, NULL, &error));
    CHECK(swarm_member_leave(NULL, &error) == SWARM_OK && swarm_member_seat(NULL).session == 0);
    REFUSED(swarm_watch_open(NULL, S("watched"), &watch, &error));
    REFUSED(swarm_watch_open(one, S("watched"), NULL, &error));
    REFUSED(swarm_watch_open(one, NULL, 0, &watch, &error));
    REFUSED(swarm_watch_next(NULL, 1, NULL, NULL, &error));
    CHECK(swarm_watch_close(NULL, &error) == SWARM_OK);
}

static void what_is_held_outlives_its_handle(void) {
    swarm_store *store;
    swarm_guard *guard;
    CHECK(swarm_open(pool, 1, &store, NULL) == SWARM_OK);
    CHECK(swarm_lock_acquire(store, S("outlives"), LONG, &guard, NULL) == SWARM_OK);
    CHECK(swarm_close(store, NULL) == SWARM_OK);
    has("outlives", 1, 0);
    CHECK(swarm_guard_is_held(guard, &error) == SWARM_OK && swarm_guard_release(guard, &error) == SWARM_OK);
    has("outlives", 0, 0);
}

static swarm_store *shared;
static int inside, counted;

static void *count_under_the_lock(void *unused) {
    for (int n = 0; n < 20; n++) {
        swarm_guard *guard;
        CHECK(swarm_lock_acquire(shared, S("threads"), LONG, &guard, NULL) == SWARM_OK);
        CHECK(__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST) == 0);
        counted++;
        CHECK(swarm_put(shared, S("counted"), &counted, sizeof counted, NULL) == SWARM_OK);
        CHECK(__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST) == 1);
        CHECK(swarm_guard_release(guard, NULL) == SWARM_OK);
    }
    return unused;
}

/* With one client, which the holder needs for what it does. */
static void threads_wait_for_a_lock(void) {
    pthread_t threads[6];
    CHECK(swarm_open(pool, 1, &shared, NULL) == SWARM_OK);
    for (int at = 0; at < 6; at++) CHECK(pthread_create(&threads[at], NULL, count_under_the_lock, NULL) == 0);
    for (int at = 0; at < 6; at++) pthread_join(threads[at], NULL);
    CHECK(counted == 120);
    swarm_close(shared, NULL);
}

static void a_child_of_a_holder_holds_nothing(void) {
    swarm_guard *guard;
    int status = -1;
    CHECK(swarm_lock_acquire(one, S("lock"), LONG, &guard, &error) == SWARM_OK);
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) {
        swarm_guard *another;
        failures = 0;
        alarm(60);
        CHECK(swarm_lock_acquire(one, S("lock"), 0, &another, &error) == SWARM_ERROR_FORKED && !another);
        CHECK(swarm_guard_is_held(guard, &error) == SWARM_ERROR_FORKED);
        CHECK(swarm_guard_release(guard, &error) == SWARM_ERROR_FORKED);
        _exit(failures != 0);
    }
    CHECK(waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(swarm_guard_is_held(guard, &error) == SWARM_OK && swarm_guard_release(guard, &error) == SWARM_OK);
}

/* Holds a lock, is a member, and begins what is done once, until it is killed. */
static void hold_for_ever(int ready) {
    swarm_store *store;
    swarm_guard *guard, *doing;
    swarm_member *member;
    if (swarm_open(pool, 1, &store, NULL) != SWARM_OK) _exit(1);
    if (swarm_lock_acquire(store, S("killed"), LONG, &guard, NULL) != SWARM_OK) _exit(1);
    if (swarm_once_begin(store, S("killed once"), LONG, &doing, NULL) != SWARM_OK) _exit(1);
    if (swarm_barrier_join(store, S("killed barrier"), 2, &member, NULL) != SWARM_OK) _exit(1);
    if (write(ready, "", 1) != 1) _exit(1);
    for (;;) pause();
}

static void *take_over(void *guard) {
    CHECK(swarm_lock_acquire(one, S("killed"), LONG, guard, NULL) == SWARM_OK);
    return NULL;
}

static void what_a_killed_process_held_goes_to_the_next(void) {
    swarm_guard *guard = NULL, *doing;
    swarm_member *member;
    swarm_meeting meeting;
    int ends[2], status;
    char byte;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) hold_for_ever(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(swarm_lock_acquire(one, S("killed"), SHORT, &guard, &error) == SWARM_TIMED_OUT);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, take_over, &guard) == 0);
    CHECK(swarm_barrier_join(two, S("killed barrier"), 2, &member, &error) == SWARM_OK);
    CHECK(swarm_member_wait(member, SHORT, NULL, &error) == SWARM_TIMED_OUT);
    /* One that is only stopped keeps what it holds. */
    CHECK(kill(process, SIGSTOP) == 0 && waitpid(process, &status, WUNTRACED) == process);
    CHECK(swarm_once_begin(two, S("killed once"), 100, &doing, &error) == SWARM_TIMED_OUT);
    CHECK(kill(process, SIGKILL) == 0 && waitpid(process, &status, 0) == process);
    pthread_join(thread, NULL);
    CHECK(swarm_guard_token(guard) == 2 && swarm_guard_is_unsettled(guard));
    CHECK(swarm_once_begin(two, S("killed once"), LONG, &doing, &error) == SWARM_OK && swarm_guard_token(doing) == 2);
    CHECK(swarm_member_wait(member, LONG, &meeting, &error) == SWARM_OK && meeting.member_count == 1);
    CHECK(swarm_guard_release(guard, &error) == SWARM_OK && swarm_once_done(doing, &error) == SWARM_OK);
    CHECK(swarm_member_leave(member, &error) == SWARM_OK);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv) {
    int status = opens(argc, argv);
    if (status) return status;
    one_at_a_time_holds_a_lock();
    an_evicted_holder_gets_an_error();
    many_read_and_permits_are_counted();
    one_does_what_is_done_once();
    latches_open_and_members_meet();
    a_watch_returns_the_last_value();
    null_and_what_cannot_be_are_errors();
    what_is_held_outlives_its_handle();
    threads_wait_for_a_lock();
    a_child_of_a_holder_holds_nothing();
    what_a_killed_process_held_goes_to_the_next();
    return closes();
}
