//! The finding of a probe.

use std::fs;
use std::path::Path;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but slower or less safely than it could.
    Warn,
    /// It does not work.
    Bad,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// The finding of a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    /// The probed item.
    pub(super) probe: String,
    pub(super) verdict: Verdict,
    /// What the probe saw.
    pub(super) saw: String,
    /// What to do, unless the severity is ok.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(probe: impl Into<String>, saw: impl Into<String>) -> Self {
        Self { probe: probe.into(), verdict: Verdict::Ok, saw: saw.into(), advice: None }
    }

    pub(super) fn warn(
        probe: impl Into<String>,
        saw: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { probe: probe.into(), verdict: Verdict::Warn, saw: saw.into(), advice }
    }

    pub(super) fn bad(
        probe: impl Into<String>,
        saw: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Bad, ..Self::warn(probe, saw, advice) }
    }
}

/// Returns a file's first line, if it can be read and is not empty.
pub(super) fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Returns the names in a directory, in order; numbers by value.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
    names
}
