//! The upstreams, and which of them gets a request.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Asking, Route, Selector, Setup, body::Sent, capabilities::Capabilities, facts::Facts};
use crate::net::upstream::Upstream;

/// How often, and how far apart, an upstream is asked what it is while it is not up yet, and how long it may take.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(2);

/// One upstream and what is known of it.
#[derive(Debug)]
pub(super) struct UpstreamSite {
    pub(super) upstream: Upstream<Sent>,
    pub(super) learned: Arc<Capabilities>,
    /// Its place among the sites.
    pub(super) place: usize,
    selector: Option<Selector>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Upstreams {
    main: UpstreamSite,
    further: Vec<UpstreamSite>,
    by_model: bool,
}

impl Upstreams {
    pub(super) fn new(setup: &Setup) -> Self {
        let main = Route { selector: None, upstream: setup.config.upstream.clone() };
        let site = |place: usize, route: &Route| UpstreamSite {
            upstream: Upstream::new(route.upstream.clone(), &setup.reach),
            learned: Arc::new(match setup.asking {
                Asking::Allowed => Capabilities::default(),
                Asking::Never => Capabilities::left_alone(),
            }),
            place,
            selector: route.selector.clone(),
        };
        let further: Vec<UpstreamSite> = (1..).zip(&setup.routes).map(|(place, route)| site(place, route)).collect();
        let by_model = further.iter().any(|site| matches!(site.selector, Some(Selector::Model(_))));
        Self { main: site(0, &main), further, by_model }
    }

    /// The same upstreams, with connections of their own; what is learnt of them is shared.
    pub(super) fn apart(&self) -> Self {
        let further = self.further.iter().map(UpstreamSite::apart).collect();
        Self { main: self.main.apart(), further, by_model: self.by_model }
    }

    /// The one that gets every request that no other gets.
    pub(super) fn main(&self) -> &UpstreamSite {
        &self.main
    }

    /// All, by place.
    pub(super) fn all(&self) -> impl Iterator<Item = &UpstreamSite> {
        std::iter::once(&self.main).chain(&self.further)
    }

    /// Whether a request's model may decide.
    pub(super) fn are_by_model(&self) -> bool {
        self.by_model
    }

    /// The upstream of a path: the longest that fits.
    pub(super) fn of_path(&self, path: &str) -> Option<&UpstreamSite> {
        self.longest(|selector| selector.takes_path(path))
    }

    /// The upstream of a request: by its path, else by its model, else the main one.
    pub(super) fn of(&self, path: &str, model: Option<&str>) -> &UpstreamSite {
        self.of_path(path).or_else(|| self.longest(|selector| selector.takes_model(model?))).unwrap_or(&self.main)
    }

    fn longest(&self, takes: impl Fn(&Selector) -> Option<usize>) -> Option<&UpstreamSite> {
        let fitting = self.further.iter().filter_map(|site| Some((takes(site.selector.as_ref()?)?, site)));
        fitting.max_by_key(|(length, _)| *length).map(|(_, site)| site)
    }
}

impl UpstreamSite {
    fn apart(&self) -> Self {
        Self {
            upstream: self.upstream.with_own_connections(),
            learned: Arc::clone(&self.learned),
            place: self.place,
            selector: self.selector.clone(),
        }
    }

    /// Asks the engine for what it tells of itself once, for a short time.
    pub(super) async fn ask_facts(&self) {
        if let Ok(Ok(facts)) = timeout(PATIENCE, Facts::of(&self.upstream)).await {
            self.learned.set_facts(facts);
        }
    }

    /// Asks an upstream that is not up yet in the background, until it answers.
    pub(super) fn learn_facts(&self) {
        if self.learned.has_answered() {
            return;
        }
        let (upstream, learned) = (self.upstream.clone(), Arc::clone(&self.learned));
        tokio::spawn(async move {
            for _ in 0..TRIES {
                match timeout(PATIENCE, Facts::of(&upstream)).await {
                    Ok(Ok(facts)) => return learned.set_facts(facts),
                    Ok(Err(_)) | Err(_) => {
                        let _hurried = timeout(PAUSE, learned.is_wanted()).await;
                    }
                }
            }
        });
    }
}
