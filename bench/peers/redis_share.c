/* The Redis contestant of `samite bench coherence` (see redis.h): values that several clients share.
 *
 * All words of a value are the number of its version. A reader looks at the first word of each page, and,
 * after the clock, at all words of the last version. What each kind does is said in the crate's documentation; `ping-pong` is
 * done in the faster of two ways: a value that is set and published, and a list.
 */
#include "redis.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* SEEN: versions that a reader sees at least. */
enum { PAGE = 4096, AHEAD = 16, SEEN = 10 };
static const uint64_t LAST = UINT64_MAX;
static const double LASTS = 0.2, EVERY = 0.001;

static int rank, ranks;
static const char *folder;
static struct link client;    /* requests */
static struct link published; /* what the other one has published */
static struct link popped;    /* what is taken from a list */
static struct link stale;     /* the names of values that were replaced */
static unsigned char *value;
static size_t bytes;
static int mine; /* whether all was as it must be */

static void stamp(unsigned char *to, uint64_t version)
{
    for (size_t at = 0; at + sizeof version <= bytes; at += sizeof version)
        memcpy(to + at, &version, sizeof version);
}

static uint64_t version_by(size_t step)
{
    uint64_t first, other;
    memcpy(&first, value, sizeof first);
    for (size_t at = step; at + sizeof other <= bytes; at += step) {
        memcpy(&other, value + at, sizeof other);
        mine &= other == first;
    }
    return first;
}

static uint64_t version(void)
{
    return version_by(PAGE);
}

/* Sends a number to another rank, by a list of its own. */
static void tell(int to, double number)
{
    char words[64];
    snprintf(words, sizeof words, "*3\r\n$5\r\nRPUSH\r\n$6\r\nto.%03d\r\n", to);
    send_value(&client, words, &number, sizeof number);
    receive_reply(&client, ':');
}

static double hear(void)
{
    char words[64];
    double number;
    snprintf(words, sizeof words, "*3\r\n$5\r\nBLPOP\r\n$6\r\nto.%03d\r\n$1\r\n0\r\n", rank);
    send_text(&client, words);
    receive_reply(&client, '*');
    char name[16];
    receive_value(&client, name, 6);
    receive_value(&client, &number, sizeof number);
    return number;
}

/* All ranks meet; rank 0 learns the sum of what each has. */
static double meet(double own)
{
    if (rank) {
        tell(0, own);
        hear();
        return 0;
    }
    for (int other = 1; other < ranks; other++)
        own += hear();
    for (int other = 1; other < ranks; other++)
        tell(other, 0);
    return own;
}

static void set(void)
{
    send_value(&client, "*3\r\n$3\r\nSET\r\n$6\r\nshared\r\n", value, bytes);
    receive_reply(&client, '+');
}

static void get(void)
{
    send_text(&client, "*2\r\n$3\r\nGET\r\n$6\r\nshared\r\n");
    receive_value(&client, value, bytes);
}

static void subscribe(struct link *l, const char *channel)
{
    char words[128];
    snprintf(words, sizeof words, "*2\r\n$9\r\nSUBSCRIBE\r\n$%zu\r\n%s\r\n", strlen(channel), channel);
    send_text(l, words);
    char name[64];
    receive_reply(l, '*');
    receive_value(l, name, 9);
    receive_value(l, name, strlen(channel));
    receive_reply(l, ':');
}

/* Values that were replaced, counted by a thread, as client libraries do. */
static atomic_ulong replaced;

static void *watch(void *unused)
{
    char name[64];
    for (;;) {
        /* *3 message CHANNEL *1 KEY, or a null array in place of the keys */
        receive_reply(&stale, '*');
        receive_value(&stale, name, 7);
        receive_value(&stale, name, 20);
        for (long keys = receive_reply(&stale, '*'); keys > 0; keys--)
            receive_value(&stale, name, 6);
        atomic_fetch_add(&replaced, 1);
    }
    return unused;
}

/* What is replaced is told to the other connection from now on. */
static void track(void)
{
    static int number;
    char words[128], id[32];
    if (!number) {
        connect_to_server(&stale, folder);
        send_text(&stale, "*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n");
        number = (int)receive_reply(&stale, ':');
        subscribe(&stale, "__redis__:invalidate");
        pthread_t thread;
        if (pthread_create(&thread, NULL, watch, NULL))
            die("pthread_create");
    }
    int count = snprintf(id, sizeof id, "%d", number);
    snprintf(words, sizeof words,
             "*5\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\nON\r\n$8\r\nREDIRECT\r\n$%d\r\n%s\r\n", count, id);
    send_text(&client, words);
    receive_reply(&client, '+');
}

static void track_no_more(void)
{
    send_text(&client, "*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$3\r\nOFF\r\n");
    receive_reply(&client, '+');
}

/* Returns the seconds of a read. */
static double read_on(int is_cached)
{
    unsigned long seen = atomic_load(&replaced);
    long reads = 0, versions = 0;
    if (is_cached)
        get();
    double start = now(), end;
    for (uint64_t newest = 0, next = 0; newest != LAST; newest = next, reads++) {
        if (!is_cached)
            get();
        else if (atomic_load_explicit(&replaced, memory_order_acquire) != seen) {
            seen = atomic_load(&replaced);
            get();
        }
        next = version();
        mine &= next >= newest;
        versions += next != newest;
    }
    end = now();
    /* It has not come when all was over. */
    mine &= versions >= SEEN && version_by(sizeof(uint64_t)) == LAST;
    return (end - start) / (double)reads;
}

static void write_on(void)
{
    double start = now(), at = start;
    for (uint64_t next = 2; at < start + LASTS; next++) {
        stamp(value, next);
        set();
        double wait = (at += EVERY) - now();
        struct timespec pause = { 0, (long)(wait * 1e9) };
        if (wait > 0)
            nanosleep(&pause, NULL);
    }
    stamp(value, LAST);
    set();
}

static double one_writer(int is_cached)
{
    if (rank && is_cached)
        track();
    if (rank == 0) {
        stamp(value, 1);
        set();
    }
    meet(0);
    double each = 0;
    if (rank)
        each = read_on(is_cached);
    else
        write_on();
    if (rank && is_cached)
        track_no_more();
    return meet(each) / (ranks - 1);
}

/* Each client writes its value so often; with `is_pipelined`, it has AHEAD requests on the way, and sends
 * as many at once as replies have come. */
static double partitioned(long count, int is_pipelined)
{
    char words[96], get_words[64];
    int ahead = is_pipelined ? AHEAD : 1;
    unsigned char *values[AHEAD];
    struct iovec parts[3 * AHEAD];
    int length = snprintf(words, sizeof words, "*3\r\n$3\r\nSET\r\n$6\r\nof.%03d\r\n$%zu\r\n", rank, bytes);
    for (int slot = 0; slot < ahead; slot++)
        values[slot] = take_pages(bytes);
    meet(0);
    double start = now(), end;
    for (long sent = 0, received = 0; received < count;) {
        int some = 0;
        for (; sent < count && sent < received + ahead; sent++) {
            unsigned char *own = values[sent % ahead];
            stamp(own, (uint64_t)sent);
            parts[some++] = (struct iovec) { words, (size_t)length };
            parts[some++] = (struct iovec) { own, bytes };
            parts[some++] = (struct iovec) { "\r\n", 2 };
        }
        send_parts(&client, parts, some);
        do
            receive_reply(&client, '+');
        while (++received < sent && has_line(&client));
    }
    meet(0);
    end = now();
    if (count) {
        snprintf(get_words, sizeof get_words, "*2\r\n$3\r\nGET\r\n$6\r\nof.%03d\r\n", rank);
        send_text(&client, get_words);
        receive_value(&client, value, bytes);
        mine &= version_by(sizeof(uint64_t)) == (uint64_t)(count - 1);
    }
    for (int slot = 0; slot < ahead; slot++)
        free(values[slot]);
    return end - start;
}

static void publish(void)
{
    char words[96];
    int count = snprintf(words, sizeof words, "*3\r\n$3\r\nSET\r\n$6\r\nshared\r\n$%zu\r\n", bytes);
    char then[96];
    int other = snprintf(then, sizeof then, "\r\n*3\r\n$7\r\nPUBLISH\r\n$6\r\nchan.%d\r\n$%zu\r\n", rank, bytes);
    struct iovec parts[] = {
        { words, (size_t)count }, { value, bytes }, { then, (size_t)other }, { value, bytes }, { "\r\n", 2 }
    };
    send_parts(&client, parts, 5);
}

static void await_published(void)
{
    char name[16];
    receive_reply(&published, '*');
    receive_value(&published, name, 7);
    receive_value(&published, name, 6);
    receive_value(&published, value, bytes);
}

static void push(void)
{
    char words[64];
    snprintf(words, sizeof words, "*3\r\n$5\r\nRPUSH\r\n$6\r\nball.%d\r\n", 1 - rank);
    send_value(&client, words, value, bytes);
}

static void await_pushed(void)
{
    char name[16];
    receive_reply(&popped, '*');
    receive_value(&popped, name, 6);
    receive_value(&popped, value, bytes);
}

static void ask_for_pushed(void)
{
    char words[64];
    snprintf(words, sizeof words, "*3\r\n$5\r\nBLPOP\r\n$6\r\nball.%d\r\n$1\r\n0\r\n", rank);
    send_text(&popped, words);
}

/* Two clients write the value in turn, `count` times each. The replies to what was written are taken while
 * the other writes. */
static void ping_pong(int way, long count)
{
    for (long i = 0; i < 2 * count; i++) {
        int is_turn = i % 2 == rank;
        if (is_turn) {
            stamp(value, (uint64_t)i);
            if (way)
                push();
            else
                publish();
            continue;
        }
        if (way)
            ask_for_pushed();
        if (i > rank) {
            if (!way)
                receive_reply(&client, '+');
            receive_reply(&client, ':');
        }
        if (way)
            await_pushed();
        else
            await_published();
        mine &= version() == (uint64_t)i;
    }
    /* The last reply of the one who wrote last. */
    if (rank == 1) {
        if (!way)
            receive_reply(&client, '+');
        receive_reply(&client, ':');
    }
}

/* Returns the seconds, in the faster way for this size. */
static double trips(long count, long warmup)
{
    static size_t of;
    static int way;
    double took[2];
    if (of != bytes) {
        for (int trial = 0; trial < 3; trial++)
            for (int which = 0; which < 2; which++) {
                meet(0);
                double start = now(), each;
                ping_pong(which, 20);
                each = now() - start;
                took[which] = trial && took[which] < each ? took[which] : each;
            }
        way = took[1] < took[0];
        if (rank == 0)
            tell(1, way);
        else
            way = (int)hear();
        of = bytes;
    }
    ping_pong(way, warmup);
    meet(0);
    double start = now();
    ping_pong(way, count);
    double end = now();
    if (count)
        mine &= version_by(sizeof(uint64_t)) == (uint64_t)(2 * count - 1);
    return end - start;
}

static double run(const struct command *k)
{
    if (!strncmp(k->kind, "ping-pong", strlen("ping-pong")))
        return trips(k->iters, k->warmup);
    if (!strcmp(k->kind, "one-writer") || !strcmp(k->kind, "cached"))
        return one_writer(!strcmp(k->kind, "cached"));
    int is_pipelined = !strcmp(k->kind, "pipelined");
    partitioned(k->warmup, is_pipelined);
    return partitioned(k->iters, is_pipelined);
}

static int is_known(const struct command *k)
{
    static const char *kinds[] = { "one-writer", "cached", "partitioned", "partitioned-own",
                                   "pipelined" };
    if (strcmp(k->name, "share") || k->bytes < (long)sizeof(uint64_t))
        return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(k->kind, kinds[i]))
            return 1;
    return !strncmp(k->kind, "ping-pong", strlen("ping-pong")) && ranks == 2;
}

int main(int argc, char **argv)
{
    const char *text = getenv("SAMITE_BENCH_RANK"), *count = getenv("SAMITE_BENCH_RANKS");
    if (argc != 2 || !text || !count) {
        fprintf(stderr, "usage: SAMITE_BENCH_{RANK,RANKS}=... %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    rank = atoi(text);
    ranks = atoi(count);
    folder = argv[1];
    die_with_parent();
    /* Before this process is pinned: the server may run wherever there is room. */
    int server = rank ? 0 : start_server(folder);
    pin(rank);
    connect_to_server(&client, folder);
    connect_to_server(&published, folder);
    connect_to_server(&popped, folder);
    char channel[16];
    snprintf(channel, sizeof channel, "chan.%d", rank ? 0 : 1);
    subscribe(&published, channel);
    struct control c = control_open(folder, rank);
    meet(0);
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        if (!is_known(&k)) {
            answer(&c, "unsupported");
            continue;
        }
        bytes = (size_t)k.bytes;
        value = take_pages(bytes);
        mine = 1;
        double seconds = run(&k);
        int good = meet(mine) == ranks;
        free(value);
        if (good)
            answer_number(&c, seconds);
        else
            answer(&c, "error a value is not one version, or a reader has seen too few of them");
    }
    if (server)
        kill(server, SIGKILL);
    return 0;
}
