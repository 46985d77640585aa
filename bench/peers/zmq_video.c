/* The libzmq contestant of the pipeline of `samite bench video` (see video.h), over ipc.
 *
 * The driver starts each process and names it by SAMITE_BENCH_RANK. SAMITE_BENCH_VIDEO says how a frame
 * comes to a worker:
 *   request N  the worker asks for it (REQ, and REP at the source), and has asked for N - 1 more while it
 *              computes one
 *   push N     the source pushes it to the next worker whose queues, of N frames at each end, have room
 *              (PUSH, and PULL at the worker)
 * In both, the worker pushes its results to the sink, with the high-water mark N, or 10 with requests. With
 * the word `planned` after N, the source knows the nodes, and plans the end as Samite's source does.
 */
#include "zmq_peer.h"
#include "video.h"
#include <stdatomic.h>

/* Before each frame. */
struct head {
    int64_t number; /* END after the last one */
    int64_t worker;
};

/* SPARES: results of a worker on their way; READY of them have memory from the beginning. LASTS: seconds. */
enum { END = -1, SPARES = 64, READY = 3, MOST_AHEAD = 4, LASTS = 120 };

static int rank, ranks, high_water;
static int ahead, is_planned; /* `ahead`: requests of a worker; 0 where frames are pushed */
static void *frames, *results, *done; /* sockets; `done` is from the sink to the source */
static void *asking[MOST_AHEAD];      /* of a worker: a socket has one request at a time */

static void *open_socket(void *context, int type, const char *dir, const char *name, int number, int is_server)
{
    char address[4096];
    snprintf(address, sizeof address, "ipc://%s/%s.%d", dir, name, number);
    void *sock = zmq_socket(context, type);
    if (!sock)
        die("zmq_socket");
    set_option(sock, ZMQ_LINGER, 0);
    set_option(sock, ZMQ_SNDHWM, high_water);
    set_option(sock, ZMQ_RCVHWM, high_water);
    set_option(sock, ZMQ_RECONNECT_IVL, 5);
    if (is_server ? zmq_bind(sock, address) : zmq_connect(sock, address))
        die(address);
    return sock;
}

static void connect_to(void *sock, const char *dir, const char *name, int number)
{
    char address[4096];
    snprintf(address, sizeof address, "ipc://%s/%s.%d", dir, name, number);
    if (zmq_connect(sock, address))
        die(address);
}

static void open_sockets(void *context, const char *dir)
{
    int sink = ranks - 1;
    if (rank == 0 && ahead)
        frames = open_socket(context, ZMQ_REP, dir, "frames", 0, 1);
    else if (rank == 0) {
        /* It connects to all workers at once, so that each has its turn from the first frame on. */
        frames = open_socket(context, ZMQ_PUSH, dir, "frames", 1, 0);
        for (int w = 2; w < sink; w++)
            connect_to(frames, dir, "frames", w);
    } else if (rank < sink && !ahead)
        asking[0] = open_socket(context, ZMQ_PULL, dir, "frames", rank, 1);
    for (int a = 0; rank && rank < sink && a < ahead; a++)
        asking[a] = open_socket(context, ZMQ_REQ, dir, "frames", 0, 0);
    if (rank == 0)
        done = open_socket(context, ZMQ_PULL, dir, "done", 0, 1);
    else
        results = open_socket(context, rank == sink ? ZMQ_PULL : ZMQ_PUSH, dir, "results", 0, rank == sink);
    if (rank == sink)
        done = open_socket(context, ZMQ_PUSH, dir, "done", 0, 0);
}

static void say(void *sock, const void *bytes, size_t count, int flags)
{
    if (zmq_send(sock, bytes, count, flags) != (int)count)
        die("zmq_send");
}

static void hear(void *sock, void *bytes, size_t count)
{
    if (zmq_recv(sock, bytes, count, 0) != (int)count)
        die("zmq_recv");
}

/* Rank 0 learns that all others are there. */
static void meet(void)
{
    char byte = 0;
    if (rank == 0)
        hear(done, &byte, 1);
    else if (rank < ranks - 1)
        say(results, &byte, 1, 0);
    else {
        for (int w = 1; w < ranks - 1; w++)
            hear(results, &byte, 1);
        say(done, &byte, 1, 0);
    }
}

static void send_frame(void *sock, struct head head, unsigned char *frame, size_t bytes, zmq_free_fn *release,
                       void *hint)
{
    say(sock, &head, sizeof head, ZMQ_SNDMORE);
    say_in_place(sock, frame, bytes, release, hint);
}

/* Returns the worker that asks for a frame; 0 where frames are pushed. */
static int await_request(void)
{
    char worker = 0;
    if (ahead)
        hear(frames, &worker, 1);
    return worker;
}

static void source(const struct video *v, unsigned char *ring, struct outcome *o)
{
    struct plan plan = { .ahead = ahead };
    long ends = v->workers * (ahead ? ahead : 1);
    for (long i = 0; i < v->frames;) {
        int to = await_request();
        int is_frame = !is_planned || is_given(v, &plan, to, v->frames - i - 1);
        send_frame(frames, (struct head) { is_frame ? i : END, 0 }, ring + (size_t)(i % RING) * v->bytes,
                   is_frame ? v->bytes : 0, keep, NULL);
        i += is_frame;
        ends -= !is_frame;
    }
    hear(done, o, sizeof *o);
    /* All queues are empty, so each worker gets one. */
    for (; ends > 0; ends--) {
        await_request();
        send_frame(frames, (struct head) { END, 0 }, ring, 0, keep, NULL);
    }
}

/* Memory of results: another thread says that one has left. */
static struct {
    unsigned char *bytes;
    atomic_int is_taken;
} spare[SPARES];

static void release(void *bytes, void *which)
{
    (void)bytes;
    atomic_store((atomic_int *)which, 0);
}

static void wait_since(double begin, const char *what)
{
    if (now() > begin + LASTS)
        give_up(what);
    sched_yield();
}

static int take_spare(size_t bytes)
{
    for (double begin = now();; wait_since(begin, "results do not leave a worker"))
        for (int at = 0; at < SPARES; at++)
            if (!atomic_load(&spare[at].is_taken)) {
                if (!spare[at].bytes)
                    spare[at].bytes = take_frames(bytes);
                atomic_store(&spare[at].is_taken, 1);
                return at;
            }
}

/* Waits for a socket of a worker that has a frame: requests are not answered in their order. */
static int next_of(int sockets, const int *is_over)
{
    static int last;
    zmq_pollitem_t items[MOST_AHEAD];
    for (int a = 0; a < sockets; a++)
        items[a] = (zmq_pollitem_t) { asking[a], 0, is_over[a] ? 0 : ZMQ_POLLIN, 0 };
    if (zmq_poll(items, sockets, LASTS * 1000) <= 0)
        give_up("the source does not answer");
    do
        last = (last + 1) % sockets;
    while (!(items[last].revents & ZMQ_POLLIN));
    return last;
}

static void worker(const struct video *v, struct node *node)
{
    struct head head;
    zmq_msg_t frame;
    char own = (char)node->worker;
    int sockets = ahead ? ahead : 1, is_over[MOST_AHEAD] = {0}, ends = 0;
    for (int a = 0; a < ahead; a++)
        say(asking[a], &own, 1, 0);
    while (ends < sockets) {
        int turn = sockets > 1 ? next_of(sockets, is_over) : 0;
        hear(asking[turn], &head, sizeof head);
        size_t bytes = hear_in_place(asking[turn], &frame);
        if (head.number == END) {
            zmq_msg_close(&frame);
            is_over[turn] = 1;
            ends++;
            continue;
        }
        if (bytes != v->bytes)
            give_up("a frame of another size");
        int out = take_spare(v->bytes);
        compute(v, zmq_msg_data(&frame), spare[out].bytes, node, NULL);
        zmq_msg_close(&frame);
        head.worker = node->worker;
        send_frame(results, head, spare[out].bytes, v->bytes, release, &spare[out].is_taken);
        if (ahead)
            say(asking[turn], &own, 1, 0);
    }
    node->left = now();
}

/* When all results have arrived. */
static void free_spares(size_t bytes)
{
    double begin = now();
    for (int at = 0; at < SPARES; at++) {
        while (atomic_load(&spare[at].is_taken))
            wait_since(begin, "results do not leave a worker");
        drop_frames(spare[at].bytes, bytes);
        spare[at].bytes = NULL;
    }
}

/* Receives what is before a result, or, and then returns 0, what a worker says when it has ended. */
static int hear_head(struct head *head, struct node *nodes, long workers)
{
    union {
        struct head head;
        struct node node;
    } either;
    int size = zmq_recv(results, &either, sizeof either, 0);
    *head = either.head;
    if (size == sizeof either.head)
        return 1;
    if (size != sizeof either.node || either.node.worker < 0 || either.node.worker >= workers)
        give_up("neither a result nor a node");
    nodes[either.node.worker] = either.node;
    return 0;
}

static void sink(const struct video *v)
{
    static zmq_msg_t early[LATE];
    static char is_here[LATE];
    struct outcome o = {0};
    struct node nodes[MOST_WORKERS];
    long turn = 0, ended = 0;
    for (long received = 0; received < v->frames; received++) {
        struct head head;
        /* What a worker says when it has ended may come before the last results of others. */
        for (; !hear_head(&head, nodes, v->workers); ended++)
            ;
        double begin = now();
        if (head.number < turn || head.number >= v->frames || head.worker < 0 || head.worker >= v->workers)
            give_up("a result of another number");
        long at = head.number % LATE;
        if (hear_in_place(results, &early[at]) != v->bytes)
            give_up("a result of another size");
        o.counts[head.worker]++;
        for (is_here[at] = 1; is_here[at = turn % LATE]; turn++) {
            o.checksum = chain(o.checksum, hash(zmq_msg_data(&early[at]), v->bytes));
            zmq_msg_close(&early[at]);
            is_here[at] = 0;
        }
        o.busy += now() - begin;
    }
    o.end = now();
    say(done, &o, sizeof o, 0);
    for (struct head head; ended < v->workers; ended++)
        if (hear_head(&head, nodes, v->workers))
            give_up("more results than frames");
    say(done, nodes, sizeof nodes, 0);
}

/* Rank 0 returns the seconds; then all others have ended. */
static double pipeline(const struct video *v)
{
    struct outcome o = {0};
    struct node nodes[MOST_WORKERS], node = { .worker = rank - 1 };
    if (rank == 0) {
        unsigned char *ring = make_ring(v);
        uint64_t expected = sequential(v, ring);
        meet();
        double start = now();
        source(v, ring, &o);
        hear(done, nodes, sizeof nodes);
        remember(v, o.end - start, deviation_of(v, &o), o.checksum == expected);
        describe(v, start, &o, nodes, ahead ? 3 : 2);
        drop_frames(ring, RING * v->bytes);
        return o.end - start;
    }
    if (rank == ranks - 1) {
        meet();
        sink(v);
    } else {
        for (int at = 0; at < READY; at++)
            spare[at].bytes = take_frames(v->bytes);
        meet();
        worker(v, &node);
        free_spares(v->bytes);
        say(results, &node, sizeof node, 0);
    }
    malloc_trim(0);
    remember(v, 0, 0, 1);
    return 0;
}

int main(int argc, char **argv)
{
    const char *text = getenv("SAMITE_BENCH_RANK"), *count = getenv("SAMITE_BENCH_RANKS");
    const char *way = getenv("SAMITE_BENCH_VIDEO");
    if (argc != 2 || !text || !count || !way) {
        fprintf(stderr, "usage: SAMITE_BENCH_{RANK,RANKS,VIDEO}=... %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    rank = atoi(text);
    ranks = atoi(count);
    high_water = 10;
    if (sscanf(way, "request %d", &ahead) != 1 && sscanf(way, "push %d", &high_water) != 1)
        give_up("SAMITE_BENCH_VIDEO is no way");
    is_planned = ahead && strstr(way, "planned");
    ahead = ahead > MOST_AHEAD ? MOST_AHEAD : ahead;
    die_with_parent();
    keep_memory();
    void *context = zmq_ctx_new();
    open_sockets(context, argv[1]);
    pin(rank);
    struct control c = control_open(argv[1], rank);
    meet();
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        struct video v;
        if (strcmp(k.name, "video") || !is_figure(k.what)) {
            answer(&c, "unsupported");
            continue;
        }
        if (!video_of(&k, ranks - 2, &v)) {
            answer(&c, "error the command has not as many times as there are workers");
            continue;
        }
        double wall = -1;
        if (!strcmp(k.what, "wall") || !is_past(&v))
            wall = pipeline(&v);
        if (past.is_wrong)
            answer(&c, "error the checksum is not that of a sequential run");
        else if (!strcmp(k.what, "run"))
            answer(&c, past.last);
        else
            answer_number(&c, figure_of(k.what, &v, wall));
    }
    return 0;
}
