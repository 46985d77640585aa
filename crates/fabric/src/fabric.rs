//! A process among its peers: joining, who is there, waiting.

use crate::agent::Seat;
use crate::agent::client::{self, Held};
use crate::backoff::Backoff;
use crate::engine::{Engine, Peer, UNPOLLED};
use crate::layer::Taken;
use crate::ops::{Key, Outcome};
use crate::transport::shm::Membership;
use crate::transport::{AnyTransport, Class, Outgoing, Push, Transport};
use crate::wire::kind;
use crate::{Config, Error, Identity, PeerId, PeerInfo, Result, Whom};
use samite_mem::ring::Body;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// See the crate's text. Thread: one owner at a time.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) core: RefCell<Core>,
    pub(crate) node: Membership,
    identity: Identity,
    /// Its place in a domain that an agent keeps.
    seat: Option<Seat>,
    deadline: Cell<Duration>,
    /// How long after it has given up a message this process waits for a peer that still copies into the buffer.
    pub(crate) grace: Cell<Duration>,
    spin: Option<Duration>,
    checks: bool,
    /// Whether peers are found in the arena (they are not in a simulation).
    pub(crate) shares_node: bool,
    /// Layers that there may be once.
    pub(crate) layers: RefCell<HashMap<&'static str, Taken>>,
    /// What peers read to find out whether the kernel copies between us.
    _cookie: Box<[u8; 8]>,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) transport: AnyTransport,
    pub(crate) engine: Engine,
}

impl Core {
    /// One turn: takes what arrived, moves large messages on, sends what waits.
    #[inline]
    pub(crate) fn turn(&mut self) -> usize {
        self.engine.fulfilled = false;
        let mut moved = self.transport.poll(&mut self.engine);
        self.engine.unpolled = UNPOLLED;
        if !self.engine.active.is_empty() {
            // What a frame just started goes out before the copying begins: the peer can help.
            moved += self.engine.flush(&mut self.transport);
            moved += self.engine.advance(&mut self.transport);
        }
        moved + self.engine.flush(&mut self.transport)
    }

    /// The last turns of a process that leaves: what it still had to send leaves, peers that copy into its buffers
    /// end their piece.
    fn linger(&mut self, spin: Option<Duration>) {
        let mut backoff = Backoff::default();
        loop {
            self.turn();
            let is_quiet = self.engine.withdraw_all();
            let is_over = is_quiet && !self.engine.has_unsent();
            if is_over || backoff.rest(self, spin, LINGER, &mut || false) {
                return;
            }
        }
    }
}

/// How long a process that leaves tries to get rid of what it still had to send, and waits for peers that copy.
const LINGER: Duration = Duration::from_secs(1);
/// A peer that does not end its copy so long after the receiver has given the message up is taken for one that never
/// will: the agent ends it.
const GRACE: Duration = Duration::from_secs(10);
/// What the agent is given for that.
const EVICTION: Duration = Duration::from_secs(5);

impl Fabric {
    /// Joins a domain on this node. Collective: no. Returns when this process is a peer.
    pub fn join(domain: &str, identity: Identity, config: Config) -> Result<Fabric> {
        let (seat, node, shm) = crate::transport::shm::join_domain(domain, &identity, &config)?;
        let transport = AnyTransport::Shm(Box::new(shm));
        Ok(Fabric::assemble(
            node,
            transport,
            identity,
            Some(seat),
            config,
        ))
    }

    /// A domain of one process, which nobody can join.
    pub fn alone(identity: Identity, config: Config) -> Result<Fabric> {
        let (node, shm) = crate::transport::shm::start_alone(&identity, &config)?;
        let transport = AnyTransport::Shm(Box::new(shm));
        Ok(Fabric::assemble(node, transport, identity, None, config))
    }

    pub(crate) fn assemble(
        node: Membership,
        transport: AnyTransport,
        identity: Identity,
        seat: Option<Seat>,
        config: Config,
    ) -> Fabric {
        let mut caps = transport.caps();
        caps.map &= !config.mask.map;
        caps.kernel_copy &= !config.mask.kernel_copy;
        let cookie = Box::new((std::process::id() as u64 ^ 0x5a31_7e5a_0000_0000).to_le_bytes());
        node.layout
            .set_cookie(node.me, cookie.as_ptr() as u64, u64::from_le_bytes(*cookie));
        let shares_node = matches!(transport, AnyTransport::Shm(_));
        let engine = Engine::new(node.clone(), caps, &config);
        let fabric = Fabric {
            core: RefCell::new(Core { transport, engine }),
            node,
            identity,
            seat,
            deadline: Cell::new(config.deadline),
            grace: Cell::new(GRACE),
            spin: config.spin.or(config.background.then_some(Duration::ZERO)),
            checks: config.check,
            shares_node,
            layers: RefCell::default(),
            _cookie: cookie,
        };
        fabric.progress();
        fabric
    }

    /// This process.
    pub fn me(&self) -> PeerId {
        self.node.me
    }

    /// Which life of its number this process is: what others know as [`PeerInfo::incarnation`].
    pub fn incarnation(&self) -> u32 {
        self.node.incarnation
    }

    /// What it said of itself.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether this is a fork of the process that joined: nothing that it has is its own.
    pub(crate) fn is_of_parent(&self) -> bool {
        !self.node.heap.owner().is_current()
    }

    /// Name of the domain; `None` in a domain of one.
    pub fn domain(&self) -> Option<&str> {
        self.seat.as_ref().map(|seat| seat.domain.as_str())
    }

    /// The deadline of waits.
    pub fn deadline(&self) -> Duration {
        self.deadline.get()
    }

    pub(crate) fn spin(&self) -> Option<Duration> {
        self.spin
    }

    /// Has the agent end who still copies into buffers of this process, long after their messages were given up.
    pub(crate) fn evict(&self, held: &[Held]) {
        let Some(seat) = &self.seat else { return };
        for held in held {
            let peer = held.holder.0;
            tracing::warn!(%peer, "it still copies into a buffer that was taken back; the agent is asked to end it");
            let life = (seat.peer, seat.incarnation);
            if let Err(error) = client::evict(&seat.domain, life, *held, EVICTION) {
                tracing::warn!(%error, %peer, "it could not be ended");
            }
        }
    }

    /// Changes the deadline of the waits that follow.
    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline.set(deadline);
    }

    /// Whether the layers above are to check what the program does ([`Config::check`]).
    pub fn checks(&self) -> bool {
        self.checks
    }

    /// What the transport can do here, after the mask.
    pub fn caps(&self) -> crate::transport::Caps {
        self.core.borrow().engine.caps
    }

    /// Whether more processes want the processors than there are: spinning would keep whom we wait for
    /// from running.
    pub fn is_crowded(&self) -> bool {
        self.core.borrow().transport.crowded()
    }

    /// The process id of a peer out of whose private memory this process should copy so many bytes: the
    /// kernel does it, and no other way is faster here.
    pub fn reads_private(&self, peer: PeerId, bytes: u64) -> Option<i32> {
        let engine = &mut self.core.borrow_mut().engine;
        let fastest = engine.costs.choose(bytes, true, false) == crate::Choice::Kernel;
        // Nothing is kept of numbers that nobody has.
        let pid = engine.peers.get(peer.index())?.info.as_ref()?.pid;
        (fastest && engine.kernel_works(peer)).then_some(pid)
    }

    /// Bytes of shared memory that this process has in blocks.
    pub fn shared_bytes(&self) -> u64 {
        self.sweep();
        self.node.heap.used()
    }

    /// Takes what has arrived and moves operations on; how much that was. Never blocks.
    pub fn progress(&self) -> usize {
        self.core.borrow_mut().turn()
    }

    /// How many changes of membership this process has heard of: whoever follows it compares.
    pub fn changes(&self) -> u64 {
        self.core.borrow().engine.changes
    }

    /// What this process's progress has put and got for others. Accesses to memory that is mapped are not among it: its
    /// owner does not see them.
    pub fn served(&self) -> crate::Served {
        self.core.borrow().engine.served
    }

    /// Who is there now, by peer number.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.progress();
        let core = self.core.borrow();
        let alive = core.engine.peers.iter().filter_map(Peer::reachable);
        alive.cloned().collect()
    }

    /// Waits until `done` answers. Progress is made here, by whoever waits: spin while that pays, let
    /// others run, then sleep on the doorbell.
    pub(crate) fn wait<T>(
        &self,
        what: &'static str,
        whom: Whom,
        mut done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<T> {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        if let Some(value) = done(&mut core.engine) {
            return Ok(value);
        }
        let deadline = self.deadline.get();
        let mut backoff = Backoff::default();
        loop {
            if core.turn() > 0 {
                backoff.moved();
            }
            if let Some(value) = done(&mut core.engine) {
                return Ok(value);
            }
            if core.engine.is_of_parent() {
                return Err(Error::Forked);
            }
            if core.engine.agent_lost && whom == Whom::Any {
                let domain = self.domain().unwrap_or_default();
                return Err(Error::AgentLost(domain.to_owned()));
            }
            if backoff.rest(core, self.spin, deadline, &mut || false) {
                return Err(Error::Timeout {
                    what,
                    whom,
                    after: deadline,
                });
            }
        }
    }

    /// Waits for an operation and takes its result.
    #[inline]
    pub(crate) fn wait_op(&self, key: Key) -> Result<Outcome> {
        let (whom, what) = {
            let mut core = self.core.borrow_mut();
            if let Some(done) = core.engine.ops.take(key) {
                return done;
            }
            match core.engine.ops.get(key) {
                Some(op) => (op.peer, op.what),
                None => return Err(Error::Cancelled),
            }
        };
        let whom = whom.map_or(Whom::Any, Whom::Peer);
        self.wait(what, whom, |engine| engine.ops.take(key))?
    }

    /// Tells a peer that something happened; counted, never lost, matched by nothing but its key, which is below
    /// 2^63. Completion: local.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`] if the peer has not taken what was sent to it before;
    /// [`Error::NoSuchKey`].
    #[inline]
    pub fn signal(&self, to: PeerId, key: u64) -> Result<()> {
        of_users(key)?;
        self.signal_any(to, key)
    }

    /// [`Fabric::signal`], with the keys of barriers too.
    pub(crate) fn signal_any(&self, to: PeerId, key: u64) -> Result<()> {
        let mut core_ref = self.core.borrow_mut();
        let core = &mut *core_ref;
        if let Some(error) = core.engine.gone(to) {
            return Err(error);
        }
        let frame = Outgoing {
            class: Class::Request,
            kind: kind::SIGNAL,
            arg: key,
            inline: &[],
            body: Body::Slice(&[]),
        };
        // Behind what already waits, else at once.
        if !core.engine.peer(to).outbox.is_empty() || core.transport.push(to, &frame) == Push::Full
        {
            drop(core_ref);
            return self.signal_later(to, key);
        }
        Ok(())
    }

    /// A signal that waits its turn; and for it, once enough of them wait.
    #[cold]
    fn signal_later(&self, to: PeerId, key: u64) -> Result<()> {
        self.wait("room for a signal", Whom::Peer(to), |engine| {
            if let Some(error) = engine.gone(to) {
                return Some(Err(error));
            }
            let has_room = engine.peer(to).outbox.has_room();
            has_room.then(|| {
                engine.post(to, Class::Request, kind::SIGNAL, key, &[]);
                Ok(())
            })
        })?
    }

    /// Waits for a signal from a peer and takes it.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::Timeout`]; [`Error::NoSuchKey`].
    pub fn await_signal(&self, from: PeerId, key: u64) -> Result<()> {
        of_users(key)?;
        self.wait("a signal", Whom::Peer(from), |engine| {
            if engine.take_signal(from, key) {
                return Some(Ok(()));
            }
            engine.gone(from).map(Err)
        })?
    }
}

/// Whether a signal of users may have this key.
#[inline]
fn of_users(key: u64) -> Result<()> {
    if key < crate::barrier::KEYS {
        Ok(())
    } else {
        Err(Error::NoSuchKey(key))
    }
}

impl Drop for Fabric {
    /// Leaves the domain: peers see this process as lost. What it still had to send is sent if there
    /// is room soon; a message that matters is one that was waited for. A fork of the process that joined
    /// leaves nothing.
    fn drop(&mut self) {
        if self.is_of_parent() {
            return;
        }
        let (core, spin) = (self.core.get_mut(), self.spin);
        // A handler may panic meanwhile: also then nothing is freed that somebody writes into.
        let lingered = catch_unwind(AssertUnwindSafe(|| core.linger(spin)));
        let seat = self.seat.take();
        // Peers read its rings until they have seen that it is gone, which the agent knows.
        self.node.heap.leave();
        if core.engine.end_all() {
            // Shared memory that a peer still writes into is this process's until it ends.
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
