//! The live view: draws the tables of a report repeatedly, until a key or a signal ends it.

use super::frame::{Kind, Line, lines};
use super::report::Report;
use super::sample::{Connected, Sample};
use crate::style::{Out, is_colored};
use anyhow::{Context, Result, bail};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Color, Stylize};
use crossterm::terminal::{
    self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use samite_launch::Interrupts;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Draws the domain every `interval` until `q`, Escape, Ctrl-C, or a signal that asks to end. Then
/// the terminal is as it was before.
///
/// # Errors
/// The terminal cannot be drawn on; the domain is gone.
pub(super) fn live(stage: &Connected<'_>, first: Sample, interval: Duration) -> Result<()> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        bail!("there is no terminal to draw on: use `samite top --once`, or --json");
    }
    let events = Events::watch()?;
    let screen = Screen::take().context("cannot draw on this terminal")?;
    let ended = turn(&screen, &events, stage, first, interval);
    drop(screen);
    ended
}

fn turn(
    screen: &Screen,
    events: &Events,
    stage: &Connected<'_>,
    mut last: Sample,
    interval: Duration,
) -> Result<()> {
    let mut report = Report::new(&last, None);
    loop {
        screen.draw(&report)?;
        let next = Instant::now().checked_add(interval);
        // At least one look at the keyboard, however short the interval is.
        loop {
            let left = next.map(|next| next.saturating_duration_since(Instant::now()));
            match events.next(left)? {
                Event::End => return Ok(()),
                Event::Resized => screen.draw(&report)?,
                Event::Other => {}
                Event::Late => break,
            }
        }
        let sample = stage.sample()?;
        report = Report::new(&sample, Some(&last));
        last = sample;
    }
}

/// The terminal, taken until this is dropped.
struct Screen {
    colours: bool,
}

impl Screen {
    fn take() -> io::Result<Screen> {
        // A panic prints its message on the terminal as it was before.
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            usual(info);
        }));
        let screen = Screen {
            colours: is_colored(Out::Stdout),
        };
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws a report, as much as fits above the last line, which names the key.
    fn draw(&self, report: &Report) -> Result<()> {
        let (width, height) = terminal::size().context("the size of the terminal")?;
        let mut text = Vec::new();
        queue!(text, MoveTo(0, 0))?;
        let lines = lines(report, Some(width), Some(height.saturating_sub(1)));
        for (row, line) in (0..height).zip(&lines) {
            queue!(text, MoveTo(0, row))?;
            text.extend(styled(line, self.colours).bytes());
            queue!(text, Clear(ClearType::UntilNewLine))?;
        }
        let below = lines.len().min(height.into()) as u16;
        queue!(text, MoveTo(0, below), Clear(ClearType::FromCursorDown))?;
        queue!(text, MoveTo(0, height.saturating_sub(1)))?;
        text.extend(
            "q: quit"
                .chars()
                .take(width.into())
                .collect::<String>()
                .bytes(),
        );
        let mut out = io::stdout().lock();
        out.write_all(&text)?;
        out.flush().context("cannot draw on the terminal")
    }
}

fn styled(line: &Line, colours: bool) -> String {
    let text = line.text.as_str();
    match line.kind {
        _ if !colours => text.to_owned(),
        Kind::Headline | Kind::Header => text.bold().to_string(),
        Kind::Title => text.with(Color::Cyan).bold().to_string(),
        Kind::Wait => text.with(Color::Yellow).to_string(),
        Kind::Note => text.with(Color::DarkGrey).to_string(),
        Kind::Row => text.to_owned(),
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal what it was before. If that fails, the terminal is gone.
fn restore() {
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// What ends or changes the view.
struct Events {
    signals: Interrupts,
    /// A byte for each change of the terminal's size.
    resized: UnixStream,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    End,
    Resized,
    Other,
    /// Nothing, in the time given.
    Late,
}

impl Events {
    fn watch() -> Result<Events> {
        let signals = Interrupts::install()?;
        let (resized, hand) = UnixStream::pair()?;
        resized.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGWINCH, hand)
            .context("cannot learn that the terminal changes its size")?;
        Ok(Events { signals, resized })
    }

    /// Waits for the next event; without a limit if `left` is `None`.
    fn next(&self, left: Option<Duration>) -> Result<Event> {
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.resized, PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(0) => return Ok(Event::Late),
            Err(rustix::io::Errno::INTR) => return Ok(Event::Other),
            ready => {
                ready.context("cannot wait for keys")?;
            }
        };
        let [signal, resized, key] = fds.map(|fd| !fd.revents().is_empty());
        if signal && self.signals.ask_to_end().is_some() {
            return Ok(Event::End);
        }
        if resized {
            while matches!((&self.resized).read(&mut [0; 64]), Ok(64)) {}
            return Ok(Event::Resized);
        }
        if !key {
            return Ok(Event::Other);
        }
        let mut typed = [0; 64];
        let count = rustix::io::read(&stdin, &mut typed).unwrap_or(0);
        Ok(match ends(&typed[..count]) {
            true => Event::End,
            false => Event::Other,
        })
    }
}

/// Returns true if one of these keys ends the view: `q`, Ctrl-C or Escape, or the end of the input.
/// Escape also begins what other keys send, such as an arrow (`ESC [ A`, `ESC O P`).
fn ends(typed: &[u8]) -> bool {
    const ESCAPE: u8 = 0x1b;
    const CONTROL_C: u8 = 3;
    let mut keys = typed;
    loop {
        keys = match keys {
            [] => return typed.is_empty(),
            [ESCAPE] | [b'q' | CONTROL_C, ..] => return true,
            [ESCAPE, b'[', rest @ ..] => {
                let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
                &rest[end.map_or(rest.len(), |end| end + 1)..]
            }
            [ESCAPE, b'O', _, rest @ ..] => rest,
            [ESCAPE, ESCAPE, ..] => return true,
            [ESCAPE, _, rest @ ..] | [_, rest @ ..] => rest,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_end_the_view() {
        for keys in [&b"q"[..], b"xxq", b"\x03", b"\x1b", b"\x1b\x1b", b""] {
            assert!(ends(keys), "{keys:?}");
        }
        for keys in [&b"x"[..], b"\x1b[A", b"\x1bOP", b"\r", b"\x1bq"] {
            assert!(!ends(keys), "{keys:?}");
        }
    }

    #[test]
    fn without_colours_a_line_is_its_text() {
        let line = Line {
            kind: Kind::Wait,
            text: "solver.0 waits".to_owned(),
        };
        assert_eq!(styled(&line, false), line.text);
    }
}
