//! Identifies a process uniquely on this machine: process ids are reused, but not with the same
//! boot and start time.

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The start time, in ticks since the boot.
    pub(crate) began: u64,
    /// It has ended, but is not reaped.
    pub(crate) is_over: bool,
}

/// Returns the id of the machine's boot, or an empty string if it is not available.
pub(crate) fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// Returns the status of a process, or `None` if it does not exist or is not visible.
pub(crate) fn status(pid: i32) -> Option<Status> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `/proc/PID/stat`. The second field, the name, may contain anything, also `)`.
fn parse(status: &str) -> Option<Status> {
    let (_, behind) = status.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
    // In the manual's numbering, field 3 is the first one after the name.
    let field = |number: usize| fields.get(number - 3).copied();
    let threads: u64 = field(20)?.parse().ok()?;
    Some(Status {
        began: field(22)?.parse().ok()?,
        // The first thread of a process may end before the others: it is a zombie until they have.
        is_over: matches!(field(3)?, "Z" | "X") && threads <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let text = |state: &str, threads: u64| {
            let fields: Vec<String> = (4..=52)
                .map(|field| if field == 20 { threads } else { field }.to_string())
                .collect();
            format!("4711 (a ) 1 (b) {state} {}\n", fields.join(" "))
        };
        let status = |is_over| Some(Status { began: 22, is_over });
        assert_eq!(parse(&text("S", 1)), status(false));
        assert_eq!(parse(&text("Z", 0)), status(true));
        assert_eq!(parse(&text("Z", 1)), status(true));
        assert_eq!(parse(&text("Z", 3)), status(false));
        for nothing in ["", "1 (a) S", ")"] {
            assert_eq!(parse(nothing), None);
        }
        let own = std::process::id() as i32;
        assert!(self::status(own).is_some_and(|status| !status.is_over));
    }
}
