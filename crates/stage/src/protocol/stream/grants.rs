//! Memory for a step: what a rank requests from admission control, and the buffers that it gets.

use super::buffers::State;
use super::writers::{Grant, PendingRequest, Stage};
use super::{Action, Stream};
use crate::protocol::admission::{Decision, MemoryRequest, RequestId};
use crate::protocol::{Answer, BufferAt, Fault, Lack, Peer, Step, Ticket, Want};

impl Stream {
    /// Requests what a rank wants from admission control; nothing is granted at once.
    pub(super) fn ask(&mut self, rank: usize) {
        let (has, keeps) = (self.open_bytes(), self.kept_bytes(rank));
        let number = self.writers.next_ask;
        let Some(asking) = &mut self.writers.ranks[rank].asking else {
            return;
        };
        if asking.wants.is_empty() {
            return self.begun(rank, Vec::new());
        }
        let request = RequestId {
            stream: self.id,
            rank: rank as u32,
            number,
        };
        asking.stage = Stage::Asked(request, None);
        let wants = asking.wants.clone();
        self.writers.next_ask += 1;
        // Whether steps can really be dropped is determined when needed.
        self.out.push(Action::Request(MemoryRequest {
            id: request,
            wants,
            has,
            keeps,
            yields: true,
        }));
    }

    /// Handles a decision of admission control. After a grant or a refusal, the caller settles the
    /// stream: once for all decisions of a moment, of which there may be one per rank.
    pub fn decision(&mut self, decision: Decision) {
        match decision {
            Decision::Granted(request) => self.granted(request),
            Decision::Wait(request, short) | Decision::Spill(request, short) => {
                if let Some(asking) = self.asking_of(request) {
                    asking.stage = Stage::Asked(request, Some(short));
                }
            }
            Decision::Refused(request, fault) => {
                let rank = request.rank as usize;
                if self.asking_of(request).is_none() {
                    return;
                }
                match self.take_asking(rank) {
                    Some(asking) => self.fail(asking.peer, asking.ticket, fault),
                    // Nobody waits for the answer. A repeated request is checked anew.
                    None => self.writers.ranks[rank].aside = None,
                }
            }
        }
    }

    /// Returns the request of that name, which may have been set aside.
    fn asking_of(&mut self, request: RequestId) -> Option<&mut PendingRequest> {
        let rank = self.writers.ranks.get_mut(request.rank as usize)?;
        let mut requests = rank.asking.iter_mut().chain(&mut rank.aside);
        requests.find(|one| matches!(one.stage, Stage::Asked(asked, _) if asked == request))
    }

    fn granted(&mut self, request: RequestId) {
        let asking = self.asking_of(request);
        // A withdrawn request is removed from admission control before it can be granted.
        let asking = asking.expect("a grant belongs to a request");
        let (peer, wants) = (asking.peer, asking.wants.clone());
        let buffers = wants
            .iter()
            .map(|want| self.allocate(want.block_store, want.bytes, peer));
        let buffers: Vec<u64> = buffers.collect();
        let now = self.now;
        if let Some(asking) = self.asking_of(request) {
            let short = match asking.stage {
                Stage::Asked(_, short) => short,
                _ => None,
            };
            asking.granted = Some(Box::new(Grant { at: now, short }));
            asking.stage = Stage::Allocating(buffers, wants.len() as u32);
        }
    }

    /// Returns the request that waits for a buffer, which may have been set aside, and its rank.
    fn allocating(&mut self, number: u64) -> Option<(usize, &mut PendingRequest)> {
        let mut ranks = self.writers.ranks.iter_mut().enumerate();
        ranks.find_map(|(rank, state)| {
            let mut requests = state.asking.iter_mut().chain(&mut state.aside);
            let request = requests.find(|request| request.buffers().contains(&number))?;
            Some((rank, request))
        })
    }

    pub(super) fn buffer_held(&mut self, number: u64, block_store: Peer) {
        let now = self.now;
        let Some((rank, request)) = self.allocating(number) else {
            return;
        };
        // Memory that was available at once has not delayed other requests.
        let has_waited = request.since < now;
        if let Stage::Allocating(_, missing) = &mut request.stage {
            *missing -= 1;
        }
        if has_waited {
            self.out.push(Action::HasWorked(block_store));
        }
        self.begin_if_allocated(rank);
    }

    /// Answers the request of a rank if all of its buffers are allocated.
    pub(super) fn begin_if_allocated(&mut self, rank: usize) {
        let asking = self.writers.ranks[rank].asking.as_mut();
        if let Some(Stage::Allocating(buffers, 0)) = asking.map(|asking| &mut asking.stage) {
            let buffers = std::mem::take(buffers);
            self.begun(rank, buffers);
        }
    }

    /// Answers a request for a step or buffers that has everything.
    fn begun(&mut self, rank: usize, buffers: Vec<u64>) {
        let Some(asking) = self.take_asking(rank) else {
            return;
        };
        let state = &mut self.writers.ranks[rank];
        state.begun = true;
        state.buffers.extend(&buffers);
        let at = |&number: &u64| {
            let buffer = &self.store.buffers[&number];
            BufferAt {
                buffer: self.buffer_id(number),
                block_store: buffer.block_store,
                handle: buffer.handle,
                bytes: buffer.bytes,
                on_disk: false,
            }
        };
        let buffers = buffers.iter().map(at).collect();
        self.answer(asking.peer, asking.ticket, Answer::Begun { buffers });
    }

    pub(super) fn buffer_refused(&mut self, number: u64, lack: Lack) {
        let Some(buffer) = self.store.buffers.remove(&number) else {
            return;
        };
        self.out.push(Action::Freed(
            self.buffer_id(number),
            buffer.block_store,
            buffer.bytes,
        ));
        let block_store = buffer.block_store.into();
        let fault = match lack {
            Lack::Memory => Fault::BlockStoreFull { block_store },
            Lack::Budget([bytes, used, budget]) => Fault::BudgetUsedUp {
                block_store,
                bytes,
                used,
                budget,
            },
            Lack::Numbers(numbers) => Fault::NumbersUsedUp {
                block_store,
                numbers,
            },
        };
        self.allocation_failed(number, fault);
    }

    pub(super) fn asked_buffer_lost(&mut self, number: u64, block_store: Peer) {
        self.allocation_failed(
            number,
            Fault::NoBlockStore {
                block_store: block_store.into(),
            },
        );
    }

    fn allocation_failed(&mut self, number: u64, fault: Fault) {
        let Some((rank, _)) = self.allocating(number) else {
            return;
        };
        match self.stop_asking(rank) {
            Some((peer, ticket)) => self.fail(peer, ticket, fault),
            // Its next request asks for all of them again.
            None => self.drop_aside(rank),
        }
    }

    /// Removes and returns the pending request of a rank. Requests end only here.
    pub(super) fn take_asking(&mut self, rank: usize) -> Option<PendingRequest> {
        self.writers.ranks[rank].asking.take()
    }

    /// Sets the request of a rank aside, which will make it again. Returns the peer and ticket to
    /// answer.
    pub(super) fn set_aside(&mut self, rank: usize) -> Option<(Peer, Ticket)> {
        let asking = self.take_asking(rank)?;
        let answered = (asking.peer, asking.ticket);
        self.writers.ranks[rank].aside = Some(asking);
        Some(answered)
    }

    /// Returns the request that was set aside, if the rank makes the same again. Ends it if the
    /// rank requests something else, or cannot have it any more.
    pub(super) fn take_aside(
        &mut self,
        rank: usize,
        begin: Option<Step>,
        wants: &[Want],
    ) -> Option<PendingRequest> {
        let is_over = begin.is_some_and(|step| self.closed_without(step).is_some());
        let is_there = |number: &u64| {
            let buffer = self.store.buffers.get(number);
            buffer.is_some_and(|buffer| buffer.state != State::Lost)
        };
        let again = self.writers.ranks[rank].aside.take_if(|aside| {
            let is_same = (aside.begin, aside.wants.as_slice()) == (begin, wants);
            !is_over && is_same && aside.buffers().iter().all(is_there)
        });
        self.drop_aside(rank);
        again
    }

    /// Ends the request of a rank that was set aside, if there is one.
    pub(super) fn drop_aside(&mut self, rank: usize) {
        if let Some(aside) = self.writers.ranks[rank].aside.take() {
            self.end_request(aside);
        }
    }

    /// Withdraws the request of a rank. Returns the peer and ticket to answer.
    pub(super) fn stop_asking(&mut self, rank: usize) -> Option<(Peer, Ticket)> {
        let asking = self.take_asking(rank)?;
        let answered = (asking.peer, asking.ticket);
        self.end_request(asking);
        Some(answered)
    }

    fn end_request(&mut self, request: PendingRequest) {
        match request.stage {
            Stage::Queued => {}
            Stage::Asked(request, _) => self.out.push(Action::Withdraw(request)),
            Stage::Allocating(buffers, _) => buffers
                .into_iter()
                .for_each(|number| self.free_buffer(number)),
        }
    }
}
