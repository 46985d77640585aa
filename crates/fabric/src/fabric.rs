//! A process and its peers: joining, membership, waiting.

use crate::deadline::{Deadline, nanos};
use crate::engine::{Engine, Offered, Pace, Peer, UNPOLLED};
use crate::layer::Taken;
use crate::node::agent::Seat;
use crate::node::agent::client::{self, ClaimedPiece};
use crate::node::{self, Far, Joined, NodeMember};
use crate::ops::Key;
use crate::transport::delayed::Delayed;
use crate::transport::shm::Shm;
use crate::transport::spanning::Spanning;
use crate::transport::ucx::{Opened, Ucx};
use crate::transport::{AnyTransport, Push, Transport};
use crate::waiting::Waiting;
use crate::wire::{frame, kind};
use crate::{Bell, Config, Error, Expected, Identity, Link, Named, PeerId, PeerInfo, Result, Whom};
use samite_mem::ring::Body;
use samite_mem::{Biased, Guard, Waiters};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// See the crate's documentation. A handle: its clones are the same process, which leaves when the
/// last of them, and of what they created (segments, operations, views), is dropped. Thread: any.
#[derive(Clone, Debug)]
pub struct Fabric(pub(crate) Arc<Shared>);

impl AsRef<Fabric> for Fabric {
    #[inline(always)]
    fn as_ref(&self) -> &Fabric {
        self
    }
}

/// The state that all clones of a fabric share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The engine and its transport. The thread that used it last locks it with one load.
    core: Biased<Core>,
    pub(crate) node: NodeMember,
    identity: Identity,
    /// Its place in a domain with an agent.
    seat: Option<Seat>,
    deadline: Deadline,
    /// How long this process waits for a peer that still copies into the buffer of a message that
    /// was given up, in nanoseconds.
    grace: AtomicU64,
    pub(crate) spin: Option<Duration>,
    checks: bool,
    link: Option<Link>,
    /// Layers that may exist only once.
    layers: Mutex<HashMap<&'static str, Taken>>,
    /// A word that peers read to find out whether the kernel copies between us.
    _cookie: Box<[u8; 8]>,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) transport: AnyTransport,
    pub(crate) engine: Engine,
    pub(crate) waiters: Waiters<Option<Key>>,
    /// The number of the wait that was published last.
    pub(crate) shown: u64,
}

impl Core {
    /// Takes one turn: receives frames, advances large messages, sends what is queued.
    #[inline]
    pub(crate) fn turn(&mut self) -> usize {
        /// Tells the waiting threads what the turn brought, even if a handler panics in it.
        struct Turning<'a>(&'a mut Core);
        impl Drop for Turning<'_> {
            #[cold]
            fn drop(&mut self) {
                self.0.tell();
            }
        }
        let turning = Turning(self);
        let Core {
            engine, transport, ..
        } = &mut *turning.0;
        engine.fulfilled = false;
        let mut moved = transport.poll(engine);
        engine.unpolled = UNPOLLED;
        if !engine.active.is_empty() {
            // What a frame just started is sent before the copying begins, so that the peer can
            // help.
            moved += engine.flush(transport);
            moved += engine.advance(transport);
        }
        moved += engine.flush(transport);
        std::mem::forget(turning);
        if moved > 0 {
            self.tell();
        }
        moved
    }

    /// Returns why a peer cannot be reached, if so. A peer that this process has not dealt with yet
    /// is looked up.
    #[inline(always)]
    #[must_use]
    pub(crate) fn gone(&mut self, peer: PeerId) -> Option<Error> {
        match self.engine.gone(peer) {
            None => None,
            Some(why) => self.look_up(peer, why),
        }
    }

    #[cold]
    fn look_up(&mut self, peer: PeerId, why: Error) -> Option<Error> {
        if !matches!(why, Error::NoSuchPeer(_)) {
            return Some(why);
        }
        self.transport.announce(peer, &mut self.engine);
        self.engine.gone(peer)
    }

    /// As [`Core::gone`], for one incarnation: it is lost when its number has been reassigned.
    pub(crate) fn lost_life(&mut self, peer: PeerId, incarnation: u32) -> Option<Error> {
        self.known(peer);
        self.engine.lost_life(peer, incarnation)
    }

    /// Returns what is known of a peer. A peer that this process has not dealt with yet is looked
    /// up.
    pub(crate) fn known(&mut self, peer: PeerId) -> Option<&Peer> {
        let _looked_up = self.gone(peer);
        self.engine.peers.get(peer)
    }

    /// Sends a signal, if it may be sent, nothing is queued before it and there is room.
    #[inline]
    pub(crate) fn signal_now(&mut self, to: PeerId, key: u64, inline: &[u8]) -> bool {
        let frame = frame(kind::SIGNAL, key, inline, Body::Slice(&[]));
        let has_left = self.engine.may_signal(to, key)
            && self.engine.peer(to).outbox.is_empty()
            && self.transport.push(to, &frame) != Push::Full;
        if has_left {
            self.engine.spend_unpolled();
        }
        has_left
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self) {
        if self.engine.flush(&mut self.transport) > 0 {
            self.tell();
        }
        self.leave();
    }

    /// Called when this thread continues without a turn: rings if the driving thread sleeps, and
    /// work is left to it.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.waiters.is_asleep() && self.engine.is_busy() {
            Bell::of(self, self.engine.me).nudge();
        }
    }

    /// Sets what peers may do with a segment from now on. Whatever the transport was doing for them
    /// before has ended when this returns, so the memory may be reused.
    pub(crate) fn offer(&mut self, segment: u32, offered: Option<Offered>) {
        let replaced = match offered {
            Some(offered) => self.engine.offered.insert(segment, offered),
            None => self.engine.offered.remove(&segment),
        };
        let registered = replaced.and_then(|replaced| replaced.registered);
        if let Some((registration, _)) = registered
            && !self.engine.is_of_parent()
        {
            self.transport.deregister(registration);
        }
    }

    /// Wakes the threads that the last changes may concern: those whose operation has ended, and
    /// those that look at everything.
    #[inline(always)]
    pub(crate) fn tell(&mut self) {
        let ops = &mut self.engine.ops;
        let mut has_ended = |key| ops.get(key).is_none_or(|op| op.has_ended());
        if self.waiters.tell(|key| key.is_none_or(&mut has_ended)) {
            Bell::of(self, self.engine.me).nudge();
        }
    }
}

/// Cold, because only forks get here.
#[cold]
fn forked() -> Error {
    Error::Forked
}

/// How long a leaving process tries to send what is queued, and waits for peers that copy.
const LINGER: Duration = Duration::from_secs(1);
/// A peer that does not end its copy within this time after the receiver gave the message up is
/// assumed to be stuck: the agent ends it.
const GRACE: Duration = Duration::from_secs(10);
/// The time that the agent is given for that.
const EVICTION: Duration = Duration::from_secs(5);

impl Fabric {
    /// Joins a domain on this node; returns when this process is a peer. Collective: no.
    pub fn join(domain: &str, identity: Identity, config: Config) -> Result<Fabric> {
        may_use_link(domain, &config)?;
        let prepare = |far: &Far| {
            let opened = Opened::new(far).map_err(|error| Error::Join {
                domain: domain.to_owned(),
                why: error.to_string(),
            })?;
            let address = opened.address().to_vec();
            Ok(((opened, far.domain), address))
        };
        let joined = node::join_domain(domain, &identity, &config, prepare)?;
        let Joined { seat, node, .. } = joined;
        let near = Shm::new(&node, Some(joined.watch));
        let transport = match joined.far {
            None => AnyTransport::Shm(Box::new(near)),
            Some((opened, number)) => {
                let far = Ucx::new(opened, number, &node);
                AnyTransport::Spanning(Box::new(Spanning::new(near, far, &node)?))
            }
        };
        let transport = Delayed::put_before(transport, &node, &identity, &config);
        Ok(Fabric::assemble(
            node,
            transport,
            identity,
            Some(seat),
            config,
        ))
    }

    /// Creates a domain of one process, which nobody can join.
    pub fn alone(identity: Identity, config: Config) -> Result<Fabric> {
        may_use_link("of one", &config)?;
        let node = node::start_alone(&identity, &config)?;
        let transport = AnyTransport::Shm(Box::new(Shm::new(&node, None)));
        Ok(Fabric::assemble(node, transport, identity, None, config))
    }

    pub(crate) fn assemble(
        node: NodeMember,
        transport: AnyTransport,
        identity: Identity,
        seat: Option<Seat>,
        config: Config,
    ) -> Fabric {
        // Peers read the cookie to test whether the kernel copies between us.
        let cookie = Box::new((std::process::id() as u64 ^ 0x5a31_7e5a_0000_0000).to_le_bytes());
        node.layout
            .set_cookie(node.me, cookie.as_ptr() as u64, u64::from_le_bytes(*cookie));
        let engine = Engine::new(node.clone(), &config);
        let core = Core {
            transport,
            engine,
            waiters: Waiters::default(),
            shown: 0,
        };
        let fabric = Fabric(Arc::new(Shared {
            core: Biased::new(core),
            node,
            identity,
            seat,
            deadline: Deadline::new(config.deadline),
            grace: AtomicU64::new(nanos(GRACE)),
            spin: config.spin.or(config.background.then_some(Duration::ZERO)),
            checks: config.check,
            link: config.link,
            layers: Mutex::default(),
            _cookie: cookie,
        }));
        fabric.progress();
        fabric
    }

    /// Returns the number of this process.
    pub fn me(&self) -> PeerId {
        self.0.node.peer()
    }

    /// Returns the incarnation of this process, as others know it in [`PeerInfo::incarnation`].
    pub fn incarnation(&self) -> u32 {
        self.0.node.incarnation
    }

    /// Returns the identity with which this process joined.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Returns the link with which this process joined: what frames between units take that share
    /// no memory.
    pub fn link(&self) -> Option<Link> {
        self.0.link
    }

    /// Returns the name of the domain; `None` in a domain of one.
    pub fn domain(&self) -> Option<&str> {
        self.0.seat.as_ref().map(|seat| seat.domain.as_str())
    }

    /// Returns the time since some fixed moment, as waits count it: virtual in the simulator.
    pub fn now(&self) -> Duration {
        let core = self.0.lock();
        core.map_or(Duration::ZERO, |core| core.transport.now())
    }

    /// Returns the deadline of waits in this thread.
    pub fn deadline(&self) -> Duration {
        self.0.deadline.get()
    }

    /// Runs `f` with another deadline for the waits of this thread, on other fabrics too. Other
    /// threads keep theirs.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// use samite_fabric::{Error, Match};
    /// use std::time::Duration;
    /// let short = Duration::from_millis(10);
    /// let late = fabric.within(short, || fabric.recv_vec(Match::any(7)));
    /// assert!(matches!(late, Err(Error::Timeout { .. })));
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn within<R>(&self, deadline: Duration, f: impl FnOnce() -> R) -> R {
        crate::deadline::within(deadline, f)
    }

    /// Runs `f`; a wait of this thread in it, on other fabrics too, ends with
    /// [`Error::Interrupted`] when `check` returns true. A wait that sleeps calls `check` every 50
    /// ms. It may use the fabric, and must be short. For languages whose programs answer signals
    /// themselves.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// use samite_fabric::{Error, Match};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// static INTERRUPTED: AtomicBool = AtomicBool::new(true); // a signal handler sets it
    /// let check = || INTERRUPTED.swap(false, Ordering::Relaxed);
    /// let ended = fabric.interruptible(check, || fabric.recv_vec(Match::any(7)));
    /// assert!(matches!(ended, Err(Error::Interrupted)));
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn interruptible<R>(&self, check: fn() -> bool, f: impl FnOnce() -> R) -> R {
        crate::interrupt::interruptible(check, f)
    }

    /// Asks the agent to end the peers that still copy into buffers of this process long after it
    /// gave their messages up.
    pub(crate) fn evict(&self, held: &[ClaimedPiece]) {
        let Some(seat) = &self.0.seat else { return };
        for held in held {
            let (slot, life) = held.holder;
            let peer = slot.of(self.0.node.number);
            let peer = Named::new(peer, self.name_of(peer, Some(life)));
            tracing::warn!(%peer, "it still copies into a buffer that was taken back; the agent is asked to end it");
            let life = (seat.peer, seat.incarnation);
            if let Err(error) = client::evict(&seat.domain, life, *held, EVICTION) {
                tracing::warn!(%error, %peer, "it could not be ended");
            }
        }
    }

    /// Adds the names of units, where they are known, to the peers in an error. For layers that
    /// construct errors of the fabric. May be called anywhere, also in the condition of a wait.
    #[cold]
    pub fn named(&self, mut error: Error) -> Error {
        error.name_peers(|peer, life| self.0.node.name_of(peer, life));
        error
    }

    /// Returns the name of a peer for errors, such as `heat.1`; of any of its incarnations, or of a
    /// certain one. `None` if this process does not know it. May be called anywhere, also in the
    /// condition of a wait.
    #[cold]
    pub fn name_of(&self, peer: PeerId, incarnation: Option<u32>) -> Option<Arc<str>> {
        self.0.node.name_of(peer, incarnation)
    }

    /// Sets the deadline of the waits that follow.
    pub fn set_deadline(&self, deadline: Duration) {
        self.0.deadline.set(deadline);
    }

    /// Returns whether the layers above should check what the program does ([`Config::check`]).
    pub fn checks(&self) -> bool {
        self.0.checks
    }

    /// Returns whether more processes want the processors than there are: spinning would keep the
    /// process that is waited for from running.
    pub fn is_oversubscribed(&self) -> bool {
        self.0
            .lock()
            .is_ok_and(|core| core.transport.oversubscribed())
    }

    /// Returns how many bytes of shared memory this process has allocated.
    pub fn shared_bytes(&self) -> u64 {
        self.0.with(Core::sweep);
        self.0.node.heap.used()
    }

    /// Takes what has arrived and advances operations; returns how much it did. Never blocks.
    pub fn progress(&self) -> usize {
        self.0.lock().map_or(0, |mut core| {
            let moved = core.turn();
            if core.engine.upcall_wanted {
                self.work(&mut core);
            }
            moved
        })
    }

    /// Returns how many changes of membership this process has seen: a caller that follows
    /// membership compares this number.
    pub fn changes(&self) -> u64 {
        self.0.lock().map_or(0, |core| core.engine.changes)
    }

    /// Returns what this process's progress did to serve puts and gets of others. Accesses to
    /// mapped memory are not counted: the owner does not see them.
    pub fn served(&self) -> crate::Served {
        self.0
            .lock()
            .map(|core| core.engine.served)
            .unwrap_or_default()
    }

    /// Returns the living processes, by peer number.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.progress();
        let core = self.0.lock();
        core.map_or_else(|_| Vec::new(), |core| core.engine.living(|_| true))
    }

    /// Sends a signal to a peer: counted, never lost, matched only by its key, which is below 2^63.
    /// Completion: local.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// const FILLED: u64 = 1;
    /// let segment = fabric.allocate(4096)?;
    /// let remote = fabric.attach(segment.key())?; // at a peer that has the key
    /// remote.put(0, b"woven")?;
    /// fabric.signal(peer, FILLED)?; // arrives after the put
    ///
    /// fabric.await_signal(peer, FILLED)?; // at the owner
    /// let mut bytes = [0; 5];
    /// segment.bytes().read(0, &mut bytes);
    /// assert_eq!(&bytes, b"woven");
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`] if the peer has not taken what was sent to it
    /// before, or has some 250,000 other keys or messages that it has not awaited;
    /// [`Error::NoSuchKey`].
    #[inline]
    pub fn signal(&self, to: PeerId, key: u64) -> Result<()> {
        of_users(key)?;
        self.signal_any(to, key, &[])
    }

    /// As [`Fabric::signal`], but the keys of barriers are allowed, too, and their bytes.
    #[inline]
    pub(crate) fn signal_any(&self, to: PeerId, key: u64, inline: &[u8]) -> Result<()> {
        let mut core = self.0.lock()?;
        if let Some(error) = core.gone(to) {
            return Err(error);
        }
        if !core.signal_now(to, key, inline) {
            drop(core);
            return self.signal_later(to, key, inline);
        }
        Ok(())
    }

    /// Queues a signal; waits for room if the queue is full.
    #[cold]
    fn signal_later(&self, to: PeerId, key: u64, inline: &[u8]) -> Result<()> {
        self.wait("room for a signal", Whom::Peer(to), |engine| {
            if let Some(error) = engine.gone(to) {
                return Some(Err(error));
            }
            if engine.peer(to).pace == Pace::Closed {
                return Some(Err(engine.named(Error::NoMessages(to.into()))));
            }
            let has_room = engine.may_signal(to, key) && engine.has_capacity(to);
            has_room.then(|| {
                engine.spend_unpolled();
                engine.post(to, kind::SIGNAL, key, inline);
                Ok(())
            })
        })??;
        self.0.lock()?.flush();
        Ok(())
    }

    /// Waits for a signal from a peer, and takes it.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::Timeout`]; [`Error::NoSuchKey`].
    pub fn await_signal(&self, from: PeerId, key: u64) -> Result<()> {
        of_users(key)?;
        let mut ended = |engine: &mut Engine| {
            let has_come = engine.take_signal(from, key).then_some(Ok(()));
            has_come.or_else(|| engine.gone(from).map(Err))
        };
        let awaited =
            self.after_announcement(|| self.wait("a signal", Whom::Peer(from), &mut ended)?);
        awaited.map_err(|mut error| {
            if let Error::Timeout { expected, .. } = &mut error {
                *expected = Some(Box::new(Expected::Signal { key }));
            }
            error
        })
    }

    /// Runs `act`, and again if it fails because it names a peer that this process has not dealt
    /// with yet.
    pub(crate) fn after_announcement<T>(&self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match act() {
                Err(Error::NoSuchPeer(peer)) if self.lost(peer).is_none() => {}
                ended => return ended,
            }
        }
    }
}

/// Checks that a process may join with the link of this configuration.
fn may_use_link(domain: &str, config: &Config) -> Result<()> {
    config.check_link().map_err(|(setting, why)| Error::Join {
        domain: domain.to_owned(),
        why: format!("{setting}: {why}"),
    })
}

/// Checks that a user's signal may have this key.
#[inline]
fn of_users(key: u64) -> Result<()> {
    if key < crate::proto::barrier::KEYS {
        Ok(())
    } else {
        Err(Error::NoSuchKey(key))
    }
}

impl Shared {
    /// Locks the engine for this thread. `None`: this is a fork of the process that joined, and
    /// another thread held the engine when it forked. Nothing there belongs to this process.
    #[inline(always)]
    pub(crate) fn core(&self) -> Option<Guard<'_, Core>> {
        self.core.lock_unless_left()
    }

    /// As [`Shared::core`], or [`Error::Forked`].
    #[inline(always)]
    pub(crate) fn lock(&self) -> Result<Guard<'_, Core>> {
        match self.core() {
            Some(core) => Ok(core),
            None => Err(forked()),
        }
    }

    /// Runs `f` with the engine, unless it cannot be locked ([`Shared::core`]).
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
        self.core().map(|mut core| f(&mut core))
    }

    /// Returns whether this is a fork of the process that joined: nothing that it holds is its own.
    pub(crate) fn is_of_parent(&self) -> bool {
        !self.node.heap.owner().is_current()
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_nanos(self.grace.load(Ordering::Relaxed))
    }

    #[cfg(feature = "testing")]
    pub(crate) fn set_grace(&self, grace: Duration) {
        self.grace.store(nanos(grace), Ordering::Relaxed);
    }

    pub(crate) fn layers(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Taken>> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the last turns of a leaving process: what is queued is sent, and peers that copy into
    /// its buffers end their piece.
    fn linger(&self) {
        let mut waiting = Waiting::new(self, LINGER);
        let Some(mut core) = self.core() else { return };
        loop {
            waiting.turn(&mut core);
            let is_quiet = core.engine.withdraw_all();
            let has_left = !core.engine.has_unsent() && core.engine.pieces.is_empty();
            let is_over = is_quiet && has_left;
            if is_over || waiting.rest(&mut core, &mut || false) {
                return;
            }
        }
    }
}

impl Drop for Shared {
    /// Leaves the domain: peers see this process as lost. What is queued is sent if there is room
    /// soon; wait for messages that matter. A fork of the process that joined has nothing to leave.
    fn drop(&mut self) {
        if self.is_of_parent() {
            return;
        }
        // A handler may panic meanwhile: even then nothing is freed that a peer writes into.
        let lingered = catch_unwind(AssertUnwindSafe(|| self.linger()));
        self.core.get_mut().transport.leave();
        let seat = self.seat.take();
        let core = self.core.get_mut();
        for registration in core.engine.take_registrations() {
            core.transport.deregister(registration);
        }
        // Peers read its rings until they have seen its departure, which the agent knows.
        self.node.heap.leave();
        if self.core.get_mut().engine.end_all() {
            // Shared memory that a peer still writes into stays with this process until it exits.
            std::mem::forget(seat);
        } else {
            drop(seat);
        }
        match lingered {
            Err(panic) if !std::thread::panicking() => resume_unwind(panic),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Match;
    use crate::proto::rma::Piece;

    /// A leaving process that took messages, and still has an operation in progress that ends
    /// without a frame, sleeps.
    #[test]
    fn a_process_that_leaves_sleeps() {
        let fabric = Fabric::alone(Identity::by_hand("leaves"), Config::default()).unwrap();
        let me = fabric.me();
        fabric.send(me, 1, &[1]).unwrap();
        fabric.recv(Match::any(1), &mut [0]).unwrap();
        let piece = Piece {
            peer: me,
            segment: 0,
            op: 0,
            at: 0,
            bytes: 8,
        };
        fabric.0.lock().unwrap().engine.pieces.insert(1, piece);
        let is_asleep = std::thread::scope(|threads| {
            let leaves = threads.spawn(|| fabric.0.linger());
            loop {
                let is_over = leaves.is_finished();
                let core = &mut *fabric.0.lock().unwrap();
                if is_over || core.waiters.is_asleep() {
                    core.engine.pieces.clear();
                    return !is_over;
                }
            }
        });
        assert!(is_asleep);
    }
}
