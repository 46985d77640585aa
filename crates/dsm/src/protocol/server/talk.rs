//! What the cache and the directory of a chunk say to each other: at the same server it is handled
//! at once, otherwise it is sent.

use super::chunk::{Home, Side};
use super::{Server, ServerAction, Waiting, Written, answer_to, fail};
use crate::protocol::message::{Answer, Event, Fault};
use crate::protocol::{
    Access, Between, CacheAction, CacheEvent, ChunkId, Content, DirectoryAction, DirectoryEvent,
    GuardId, Mode, Process, Ticket,
};
use std::collections::VecDeque;

impl Server {
    /// As [`Server::at_cache_once`]; then others may take a version, or write.
    pub(super) fn at_cache(
        &mut self,
        id: ChunkId,
        event: CacheEvent,
        actions: &mut Vec<ServerAction>,
    ) {
        self.at_cache_once(id, event, actions);
        self.take(id, actions);
        self.admit(id, actions);
    }

    /// Lets the cache of a chunk handle an event, and its directory what the cache says, until both
    /// have nothing to say.
    pub(super) fn at_cache_once(
        &mut self,
        id: ChunkId,
        event: CacheEvent,
        actions: &mut Vec<ServerAction>,
    ) {
        let mut talk = Talk::default();
        talk.to_cache.push_back(event);
        self.talk(id, talk, actions);
    }

    /// As [`Server::at_directory_once`]; then others may take a version, or write.
    pub(super) fn at_directory(
        &mut self,
        id: ChunkId,
        event: DirectoryEvent,
        actions: &mut Vec<ServerAction>,
    ) {
        self.at_directory_once(id, event, actions);
        self.take(id, actions);
        self.admit(id, actions);
    }

    /// Lets the directory of a chunk handle what another server says, and the cache what follows.
    pub(super) fn at_directory_once(
        &mut self,
        id: ChunkId,
        event: DirectoryEvent,
        actions: &mut Vec<ServerAction>,
    ) {
        let mut talk = Talk::default();
        talk.to_directory.push_back(event);
        self.talk(id, talk, actions);
    }

    fn talk(&mut self, id: ChunkId, mut talk: Talk, actions: &mut Vec<ServerAction>) {
        let begin = actions.len();
        loop {
            if let Some(decided) = talk.decided.take() {
                self.directory_decides(id, decided, &mut talk, actions);
            } else if let Some(said) = talk.to_directory.pop_front() {
                self.directory_handles(id, said, &mut talk, actions);
            } else if let Some(event) = talk.to_cache.pop_front() {
                let Some(chunk) = self.chunks.get_mut(&id) else {
                    return;
                };
                let mut did = Vec::new();
                chunk.cache.on_event(event, &mut self.next_guard, &mut did);
                for action in did {
                    if let Some(said) = self.cache_did(id, action, &mut talk, actions) {
                        self.directory_handles(id, said, &mut talk, actions);
                    }
                }
            } else if std::mem::take(&mut talk.pushes) {
                talk.to_directory.extend(self.pushes(id));
            } else {
                break;
            }
        }
        if talk.has_committed {
            // At once when the last version is there: subscribers wait longer for their events than
            // the writer for its answer.
            let is_adopt = |action: &ServerAction| {
                matches!(
                    action,
                    ServerAction::Adopt { .. } | ServerAction::AdoptFrom { .. }
                )
            };
            let last = actions[begin..].iter().rposition(is_adopt);
            let after = last.map_or(actions.len(), |last| begin + last + 1);
            let mut rest = actions.split_off(after);
            // One that hears of the version and reads it finds it published.
            let is_close = |action: &ServerAction| matches!(action, ServerAction::Close { .. });
            if !rest.iter().any(is_close) {
                let is_open =
                    |action: &mut ServerAction| matches!(action, ServerAction::Open { .. });
                actions.extend(rest.extract_if(.., is_open));
            }
            self.tell(id, actions);
            actions.extend(rest);
        }
    }

    /// Returns requests for the servers that get each version.
    fn pushes(&mut self, id: ChunkId) -> Vec<DirectoryEvent> {
        let Some(home) = self.home(id) else {
            return Vec::new();
        };
        let has = home.directory.holders();
        let to = home.followers.difference(&has);
        let access = Access::Shared;
        to.map(|from| DirectoryEvent::Ask {
            from: *from,
            access,
        })
        .collect()
    }

    /// Carries out what a cache has decided. Returns what it says to the directory.
    fn cache_did(
        &mut self,
        id: ChunkId,
        action: CacheAction,
        talk: &mut Talk,
        actions: &mut Vec<ServerAction>,
    ) -> Option<DirectoryEvent> {
        let from = self.me;
        let chunk = self.chunks.get_mut(&id)?;
        let other = match &chunk.side {
            Side::Home(_) => None,
            Side::Copy { home } => Some(*home),
        };
        let send = |to, message| ServerAction::Send { to, message };
        match action {
            CacheAction::Ask { access } => match other {
                None => return Some(DirectoryEvent::Ask { from, access }),
                Some(home) => actions.push(send(home, Between::Ask { chunk: id, access })),
            },
            CacheAction::Recalled { keeps } => match other {
                None => return Some(DirectoryEvent::Recalled { from, keeps }),
                Some(home) => {
                    if !keeps {
                        actions.push(ServerAction::DropCopy { chunk: id });
                    }
                    actions.push(send(home, Between::Recalled { chunk: id, keeps }));
                }
            },
            CacheAction::Commit {
                epoch,
                tag,
                writer,
                guard,
            } => match other {
                None => {
                    let put = talk.puts.iter().find(|(of, _)| *of == guard);
                    let sent = put.map(|(_, put)| *put).or(chunk.sent);
                    if let Some(of) = chunk.home_mut().and_then(|home| home.replication.as_mut()) {
                        of.written = Some(Written::Guard { guard, sent });
                    }
                    return Some(DirectoryEvent::Commit {
                        from,
                        epoch,
                        tag,
                        writer,
                        versions: 1,
                    });
                }
                Some(to) => actions.push(ServerAction::Forward {
                    to,
                    chunk: id,
                    guard,
                    sent: chunk.sent,
                    epoch,
                    tag,
                    writer,
                }),
            },
            CacheAction::Evicted => {
                actions.push(ServerAction::DropCopy { chunk: id });
                if let Some(home) = other {
                    actions.push(send(home, Between::Unfollow { chunk: id }));
                }
            }
            CacheAction::Redirect { to, ticket } => {
                self.waits_no_more((to, ticket));
                fail((to, ticket), Fault::AtHome, actions);
            }
            CacheAction::Give {
                to, ticket, guard, ..
            } if chunk.home().is_some_and(Home::is_final) && action_writes(&action) => {
                self.waits_no_more((to, ticket));
                fail((to, ticket), Fault::Immutable, actions);
                talk.to_cache
                    .push_back(CacheEvent::Release { from: to, guard });
            }
            CacheAction::Give {
                to,
                ticket,
                guard,
                mode,
                version,
                tag,
            } => match self.waits_no_more((to, ticket)) {
                Some(Waiting::Put { tag, .. }) => {
                    talk.puts.push((guard, (to, ticket)));
                    talk.to_cache.push_back(CacheEvent::Commit {
                        from: to,
                        ticket,
                        guard,
                        tag,
                    });
                }
                Some(Waiting::Change {
                    offset, op, tag, ..
                }) => {
                    actions.push(ServerAction::Change {
                        to,
                        ticket,
                        chunk: id,
                        offset,
                        op,
                    });
                    talk.puts.push((guard, (to, ticket)));
                    talk.to_cache.push_back(CacheEvent::Commit {
                        from: to,
                        ticket,
                        guard,
                        tag,
                    });
                }
                Some(Waiting::Own { page, .. }) => match self.may_own(id) {
                    true => {
                        self.given.insert(guard, (to, ticket, id));
                        self.owns(id, (to, guard), version);
                        talk.to_cache.push_back(CacheEvent::Own { guard });
                        actions.push(ServerAction::Own {
                            to,
                            ticket,
                            chunk: id,
                            page,
                            version,
                            tag,
                        });
                    }
                    false => {
                        answer_to((to, ticket), Answer::NotOwned, actions);
                        talk.to_cache
                            .push_back(CacheEvent::Release { from: to, guard });
                    }
                },
                Some(Waiting::Take { chunk }) => {
                    self.takes_no_more(chunk, (to, ticket));
                    if let Some(home) = self.home(id) {
                        home.taken = version;
                    }
                    self.given.insert(guard, (to, ticket, id));
                    actions.push(ServerAction::Give {
                        to,
                        ticket,
                        chunk: id,
                        guard,
                        in_place: false,
                        version,
                        tag,
                    });
                }
                Some(Waiting::Acquire { in_place, .. }) => {
                    self.given.insert(guard, (to, ticket, id));
                    actions.push(ServerAction::Give {
                        to,
                        ticket,
                        chunk: id,
                        guard,
                        in_place: in_place && mode == Mode::Write,
                        version,
                        tag,
                    });
                }
                other => unreachable!("{other:?} waits for no guard"),
            },
            CacheAction::Answer {
                to,
                ticket,
                version,
            } => {
                let answer = match version {
                    Some(version) => Answer::Committed {
                        version,
                        draft: None,
                    },
                    None => Answer::Failed(Fault::Fenced),
                };
                answer_to((to, ticket), answer, actions);
            }
            CacheAction::Adopt { guard } => {
                let put = talk.puts.iter().find(|(of, _)| *of == guard);
                let put = put.map(|(_, put)| *put);
                let chunk = self.chunks.get_mut(&id)?;
                actions.push(ServerAction::Adopt {
                    chunk: id,
                    guard,
                    sent: put.or(chunk.sent.take()),
                });
            }
            CacheAction::Discard { guard } => {
                actions.push(ServerAction::Discard { chunk: id, guard });
            }
            CacheAction::Open { version, tag } => actions.push(ServerAction::Open {
                chunk: id,
                version,
                tag,
            }),
            CacheAction::Close => actions.push(ServerAction::Close { chunk: id }),
        }
        None
    }

    /// As [`Server::at_directory`], for a commit that is at the backups of its chunk, and then what
    /// was deferred until that.
    pub(super) fn decided(
        &mut self,
        id: ChunkId,
        commit: Option<DirectoryEvent>,
        deferred: VecDeque<DirectoryEvent>,
        actions: &mut Vec<ServerAction>,
    ) {
        let talk = Talk {
            decided: commit,
            to_directory: deferred,
            ..Talk::default()
        };
        self.talk(id, talk, actions);
        self.take(id, actions);
        self.admit(id, actions);
    }

    /// Lets the directory of a chunk handle what a cache says, unless a commit is sent to backups.
    fn directory_handles(
        &mut self,
        id: ChunkId,
        event: DirectoryEvent,
        talk: &mut Talk,
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(event) = self.unless_held_back(id, event, actions) {
            self.directory_decides(id, event, talk, actions);
        }
    }

    fn directory_decides(
        &mut self,
        id: ChunkId,
        event: DirectoryEvent,
        talk: &mut Talk,
        actions: &mut Vec<ServerAction>,
    ) {
        let me = self.me;
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return;
        };
        let bytes = chunk.bytes;
        let Some(home) = chunk.home_mut() else {
            return;
        };
        let mut decided = Vec::new();
        home.directory.on_event(event, &mut decided);
        for action in decided {
            let (to, said, message) = match action {
                DirectoryAction::Recall { to, keeps } => (
                    to,
                    CacheEvent::Recall { keeps },
                    Between::Recall {
                        chunk: id,
                        keeps,
                        term: self.terms_of.get(&to).copied().unwrap_or(0),
                    },
                ),
                DirectoryAction::Grant {
                    to,
                    access,
                    version,
                    tag,
                    epoch,
                } => (
                    to,
                    CacheEvent::Granted {
                        access,
                        version,
                        tag,
                        epoch,
                    },
                    Between::Grant {
                        chunk: id,
                        bytes,
                        access,
                        version,
                        tag,
                        epoch,
                        term: self.terms_of.get(&to).copied().unwrap_or(0),
                        content: Content::Zeros,
                    },
                ),
                DirectoryAction::Committed {
                    to,
                    version,
                    tag,
                    writer,
                } => {
                    home.remembers(Event {
                        version,
                        tag,
                        writer,
                    });
                    home.committed_by(to);
                    talk.has_committed = true;
                    talk.pushes = !home.followers.is_empty();
                    if to != me {
                        actions.push(ServerAction::AdoptFrom {
                            from: to,
                            chunk: id,
                        });
                    }
                    (
                        to,
                        match home.owner {
                            Some(_) => CacheEvent::Adopted { version, tag },
                            None => CacheEvent::Committed { version },
                        },
                        Between::Committed { chunk: id, version },
                    )
                }
                DirectoryAction::Fenced { to } => {
                    if to != me {
                        actions.push(ServerAction::DropFrom {
                            from: to,
                            chunk: id,
                        });
                    }
                    (to, CacheEvent::Fenced, Between::Fenced { chunk: id })
                }
            };
            match to == me {
                true => talk.to_cache.push_back(said),
                false => actions.push(ServerAction::Send { to, message }),
            }
        }
    }
}

/// Returns true if an action gives a guard to write.
fn action_writes(action: &CacheAction) -> bool {
    matches!(
        action,
        CacheAction::Give {
            mode: Mode::Write,
            ..
        }
    )
}

/// What a cache and a directory of the same server say to each other.
#[derive(Default)]
struct Talk {
    to_cache: VecDeque<CacheEvent>,
    /// A commit that was sent to the backups of the chunk.
    decided: Option<DirectoryEvent>,
    /// What others say to the directory.
    to_directory: VecDeque<DirectoryEvent>,
    /// Puts whose turn has come: their guards are given, and their commits follow at once.
    puts: Vec<(GuardId, (Process, Ticket))>,
    has_committed: bool,
    /// Whether the last version is to be pushed to servers.
    pushes: bool,
}
