//! The upstreams, and the choice of one for a request.

use std::{sync::Arc, time::Duration};

use http::Extensions;
use tokio::time::timeout;

use super::{Setup, UpstreamRoute, UpstreamSelector, capabilities::Capabilities, facts::EngineSettings};
use net::upstream::Upstream;
use replay::account::upstream_of;

/// Inquiries to an upstream that is not up yet: their number, the pause between them and the timeout of each.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct UpstreamSite {
    pub(super) upstream: Upstream,
    pub(super) capabilities: Arc<Capabilities>,
    /// Its index among the upstreams.
    pub(super) place: usize,
    selector: Option<UpstreamSelector>,
}

#[derive(Debug)]
pub(super) struct Upstreams {
    /// That of all requests that no other one takes.
    pub(super) main: UpstreamSite,
    further: Vec<UpstreamSite>,
    /// Requests may be routed by their model.
    pub(super) by_model: bool,
}

impl Upstreams {
    pub(super) fn new(setup: &Setup) -> Self {
        let main = UpstreamRoute { selector: None, upstream: setup.config.upstream.clone() };
        let site = |place: usize, route: &UpstreamRoute| UpstreamSite {
            upstream: Upstream::new(route.upstream.clone(), &setup.reach),
            capabilities: Arc::new(match () {
                () if !setup.amends => Capabilities::never_amended(),
                () if setup.counts_tokens => Capabilities::counting(),
                () => Capabilities::default(),
            }),
            place,
            selector: route.selector.clone(),
        };
        let further: Vec<UpstreamSite> = (1..).zip(&setup.routes).map(|(place, route)| site(place, route)).collect();
        let by_model = further.iter().any(|site| matches!(site.selector, Some(UpstreamSelector::Model(_))));
        Self { main: site(0, &main), further, by_model }
    }

    /// Clones the upstreams with connections of their own and shared capabilities.
    pub(super) fn apart(&self) -> Self {
        let further = self.further.iter().map(UpstreamSite::apart).collect();
        Self { main: self.main.apart(), further, by_model: self.by_model }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &UpstreamSite> {
        std::iter::once(&self.main).chain(&self.further)
    }

    /// Finds the upstream of a path: the longest prefix wins.
    pub(super) fn of_path(&self, path: &str) -> Option<&UpstreamSite> {
        self.longest(|selector| selector.takes_path(path))
    }

    /// Finds the upstream that a request names, else that of its path and model.
    pub(super) fn of_request(&self, extensions: &Extensions, path: &str, model: Option<&str>) -> &UpstreamSite {
        let name = upstream_of(extensions).ok().flatten();
        name.and_then(|name| self.named(name)).unwrap_or_else(|| self.of(path, model))
    }

    /// Returns whether a request names an upstream that is not here.
    pub(super) fn lacks(&self, extensions: &Extensions) -> bool {
        upstream_of(extensions).is_err()
            || upstream_of(extensions).ok().flatten().is_some_and(|name| self.named(name).is_none())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.further.iter().filter_map(|site| site.selector.as_ref()?.name())
    }

    fn named(&self, name: &str) -> Option<&UpstreamSite> {
        self.further.iter().find(|site| site.selector.as_ref().and_then(UpstreamSelector::name) == Some(name))
    }

    /// Finds the upstream of a request: by its path, else by its model, else the default one.
    pub(super) fn of(&self, path: &str, model: Option<&str>) -> &UpstreamSite {
        self.of_path(path).or_else(|| self.longest(|selector| selector.takes_model(model?))).unwrap_or(&self.main)
    }

    fn longest(&self, takes: impl Fn(&UpstreamSelector) -> Option<usize>) -> Option<&UpstreamSite> {
        let fitting = self.further.iter().filter_map(|site| Some((takes(site.selector.as_ref()?)?, site)));
        fitting.max_by_key(|(length, _)| *length).map(|(_, site)| site)
    }
}

impl UpstreamSite {
    fn apart(&self) -> Self {
        Self {
            upstream: self.upstream.with_own_connections(),
            capabilities: Arc::clone(&self.capabilities),
            place: self.place,
            selector: self.selector.clone(),
        }
    }

    /// Requests the engine's version, models and settings once, with a timeout.
    pub(super) async fn ask_facts(&self) {
        if let Ok(Ok(facts)) = timeout(PATIENCE, EngineSettings::of(&self.upstream)).await {
            self.capabilities.set_facts(facts);
        }
    }

    /// Repeats [`ask_facts`](Self::ask_facts) in the background until an upstream that is not up yet answers.
    pub(super) fn learn_facts(&self) {
        if self.capabilities.has_answered() {
            return;
        }
        let (upstream, capabilities) = (self.upstream.clone(), Arc::clone(&self.capabilities));
        tokio::spawn(async move {
            for _ in 0..TRIES {
                match timeout(PATIENCE, EngineSettings::of(&upstream)).await {
                    Ok(Ok(facts)) => return capabilities.set_facts(facts),
                    Ok(Err(_)) | Err(_) => {
                        let _hurried = timeout(PAUSE, capabilities.is_wanted()).await;
                    }
                }
            }
        });
    }
}
