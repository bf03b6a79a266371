"""Words that negate or doubt a finding, and words that end their reach. General medical English, no class names.

The two halves of the idea - a trigger word and the stretch of the sentence it governs - go back to NegEx (Chapman et
al., J Biomed Inform 2001) and ConText (Harkema et al., 2009); the lists and the reach rules are our own.
"""

from __future__ import annotations

from enum import Enum
from itertools import chain

from radweave.labels.phrases import PhraseBook


class Cue(Enum):
    """What a phrase does to the findings around it."""

    NEGATES = "no X"
    NEGATES_NEXT = "resolved X"
    NEGATES_LAST = "X removal"
    NEGATED = "X is not seen"
    DOUBTS = "may represent X"
    DOUBTS_NEXT = "possible X"
    DOUBTED = "X is not excluded"
    EITHER = "X versus Y"
    PARTS = "X, but Y"
    NOTHING = "no change in X"
    NO_MORE = "no increase in X"


_SEEN = (
    "seen|identified|noted|observed|detected|visualized|visualised|visible|demonstrated|appreciated|found|evident|"
    "present|shown|suspected|recognized|recognised|apparent|distinguished|encountered|followed|selected|determined|"
    "discerned|monitored|included|remarkable|watched|viewed|revealed|suggested|displayed|reported"
)
_BE = "is|are|was|were|be|been|being"
_SINCE = "now|since|subsequently|recently|also|both|all|interval"
_NEARLY = "now|since|completely|entirely|nearly|essentially|almost|interval"
_TAKEN = "removed|pulled|discontinued|explanted|withdrawn"
_IN_PART = "pulled|withdrawn|retracted back|by|slightly|approximately|about|a|to|into"
_DEGREE = "clearly|definitely|definitively|convincingly|currently|readily|well|really|clear|distinctly|now"

CUES: dict[Cue, tuple[str, ...]] = {
    Cue.NEGATES: (
        "no",
        "not",
        "nor",
        "neither",
        "without",
        "w/o",
        "w / o",
        "denies|denied",
        "cannot|can't|isn't|aren't|wasn't|weren't|don't|doesn't|didn't",
        "negative for|of",
        "free of|from",
        "clear of",
        "devoid of",
        "exclude|excludes|excluding|excluded",
        "ruled out",
        "unremarkable for",
        "never",
        "no longer any|evidence of?",
    ),
    # Before the next entry: of two cues of one length the first given holds.
    Cue.NEGATES_LAST: (
        "removal|explantation END",
        "removal|explantation ,|(|and|with|without|since|in|is|was|has|there",
    ),
    Cue.NEGATES_NEXT: (
        "absence|lack of",
        "absent",
        "rather than",
        "instead of",
        "resolved",
        "removal|resolution|disappearance|clearing|explantation|extraction of",
        "clearing|removal|resolution|explantation",
        "recently|previously|since|newly|now removed",
    ),
    Cue.NEGATED: (
        f"{_BE} not|n't {_DEGREE}? {_SEEN}",
        f"{_BE} neither {_SEEN}",
        f"not {_DEGREE}? {_SEEN}",
        f"cannot|couldn't be {_SEEN}",
        f"could|can not be {_SEEN}",
        f"no longer {_DEGREE}? {_SEEN}",
        f"{_BE} no longer {_DEGREE}? {_SEEN}",
        f"has|have not been {_DEGREE}? {_SEEN}",
        "did|do|does not exist|occur|develop",
        "is|are|was|were absent",
        "is|are|was|were|has|have been? ruled|excluded out?",
        f"has|have been? {_NEARLY}? {_NEARLY}? resolved|cleared|disappeared",
        "has|have resolved|cleared|disappeared",
        "is|are|was|were|has|have been? completely|totally|entirely regressed",
        "is|are|was|were now? completely? resolved",
        "has|have been excluded",
        f"has|have {_SINCE}? been {_SINCE}? {_TAKEN}",
        f"is|are|was|were|been {_SINCE}? {_TAKEN}",
        "has|have|is|are|was|were|been taken|pulled out",
        "removed END",
        "removed since|in|from|,|after|between|at|now|and|without|with",
        "is|are now? out|gone END",
        "is|are none|nil|absent|negative",
        ": none|absent|negative|nil",
        ": no END",
        "( - )",
    ),
    Cue.DOUBTS: (
        "may|might|could",
        "may|might|could also|still|possibly|potentially? be|represent|reflect|indicate|suggest|correspond",
        "may|might|could also|still|possibly|potentially? be .. related|due|secondary|attributed|attributable to",
        "possibly|probably|perhaps|potentially|presumably .. related|due|secondary|attributed|attributable to",
        "no new",
        "cannot|can't exclude|rule|excluded|confidently out?",
        "can|could|does|do|to not exclude|rule out?",
        "not exclude|excluded",
        "difficult|hard to exclude",
        "rule out",
        "to exclude",
        "r / o",
        "suspicious|suspicion|suspicions|worrisome for|of",
        "concern|concerns|concerning|worry for|of|about|regarding",
        "question of|whether",
        "questions|questioning|query",
        "differential|ddx includes|include|including|considerations|diagnosis|diagnoses|of|is",
        "evaluate|evaluation|assess|assessment|evaluated for",
        "in terms of",
        "whether",
        "to be considered",
        "correlate|correlation .. for",
        "in the? appropriate|proper|right|correct clinical? setting|context ,|this|these|the|it",
        "if",
    ),
    Cue.DOUBTS_NEXT: (
        "possible|possibly|probable|probably|potential|potentially|perhaps|maybe|presumed|presumably|conceivable",
        "questionable|questionably|equivocal|indeterminate|suspected|suspect|suspicious|doubtful",
        "suggestion of",
        "question|query",
        "hint of",
        "can|could be",
        "either",
    ),
    Cue.DOUBTED: (
        "cannot|can't be? entirely|completely|definitively|totally|reliably|fully|definitely? excluded|ruled out?",
        "can|could not be? entirely|completely|definitively|totally|reliably|fully|definitely? excluded|ruled out?",
        "is|are|was|were not entirely|completely|definitively|totally|fully? excluded",
        "not entirely|completely|definitively|totally|fully? excluded",
        "is|are|was|were also|still|certainly?"
        " possible|probable|suspected|questionable|questioned|considered|equivocal|likely|conceivable",
        "suspected END",
        "in the? appropriate|proper|right|correct clinical? setting|context END",
        "is|are not well|adequately|fully|optimally evaluated|assessed",
        "to be? excluded",
        "is|are|was|were difficult|hard to exclude|assess|evaluate",
        "is|are|was|were felt? unlikely|doubtful",
        "is|are|was|were felt? less likely",
        "( ? )",
        "?",
        "should|must|may|might|could be? considered|excluded|suspected|questioned",
        "is|are|remains|remain a? consideration|possibility",
        "would|could|may|might be a? consideration|possibility",
    ),
    Cue.EITHER: ("versus|vs",),
    Cue.PARTS: (
        "but",
        "however",
        "although",
        "though",
        "albeit",
        "while",
        "whereas",
        "except",
        "excepting",
        "besides",
        "yet",
        "which",
        "aside|apart from",
        "other than",
        "with the? exception of",
        "otherwise",
        "because",
        "secondary|due|owing|attributed|attributable to",
        "related|relating to",
        "despite",
        "status post",
        "s / p",
        "given the",
        "in the setting of",
        "there is|are|was|were|has|have",
        "on a? background|floor of",
    ),
    Cue.NOTHING: (
        "no|without further|evidence? of? significant|definite|appreciable|substantial|obvious|gross|major? interval?"
        " change|changes|difference",
        "no|without significant|interval|definite|appreciable|substantial|apparent? decrease|progression",
        f"has|have been {_SINCE}? {_IN_PART}",
        f"has|have|is|are|was|were|been {_SINCE}? {_IN_PART}",
        "not significantly|appreciably|substantially|much? changed|different",
        "not only|just|merely",
        "partial|partially|incomplete|incompletely clearing|resolution|resolved|cleared of?",
        "has|have been? partially|incompletely|partly resolved|cleared|removed",
        "no longer",
        "not previously|formerly .. seen|identified|noted|present|observed|demonstrated|visualized",
        "not seen|identified|noted|present|observed|demonstrated|visualized|detected|evident|followed|available"
        " .. on|in|at the|a|any? prior|previous|earlier|old|preceding|comparison|last|former",
        "not include|included|imaged|fully|optimally|entirely",
        "not evaluated|assessed|characterized",
        "could|can|cannot not? be? evaluated|assessed optimally?",
        "if any|present|clinically|indicated|there|needed|necessary|desired",
        "no prior|previous|comparison studies|study|exam|exams|examination|examinations|available|films?",
        "may be? better|due|helpful|useful|beneficial",
        "as could be? seen",
        "could be? seen|observed|evaluated",
        "can|may be seen|observed|evaluated",
        "in contact without",
        "not calcified",
        "most|strongly|highly|very suggestive of",
        "age indeterminate",
        "indeterminate age|in",
    ),
    Cue.NO_MORE: ("no|without significant|interval|definite|appreciable|substantial|apparent|pathological? increase",),
}


def cue_book(doubts: tuple[str, ...] = ()) -> PhraseBook[Cue]:
    """All cues, and further phrases that doubt what follows them."""
    phrases = ((phrase, cue) for cue, phrases in CUES.items() for phrase in phrases)
    return PhraseBook(chain(phrases, ((phrase, Cue.DOUBTS) for phrase in doubts)))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FINITE_VERBS = _words("""
    is are was were has have had remains remain appears appear demonstrates demonstrate shows show reveals reveal
    seems seem measures measure contains extends continues persists projects overlies overlie lies does do did
    became become becomes includes contain
    can could may might will would
""")

# Behind these a quality is said of what stands before: "the heart is normal".
COPULAS = _words("is are was were remains remain appears appear seems seem")

# Behind "is" or "are" these say that something is there, and tell no quality.
SEEN = _words("""
    seen identified noted observed detected visualized visualised demonstrated appreciated found evident present shown
    suspected been
""")

# A clause that begins so says something of its own: "no effusion, there is atelectasis".
CLAUSE_OPENERS = _words("there the this these those it its they a an")

# A finding described so is there: "no pneumothorax, small effusion". Not "large": "no consolidation, large effusion".
PRESENT_QUALITIES = _words("""
    mild mildly minimal minimally small tiny trace moderate moderately severe marked markedly slight slightly stable
    unchanged persistent persisting residual worsening worsened increased increasing improving improved improvement
    multiple several few scattered chronic old healed healing bibasilar left right stably again status
    redemonstrated known prominent interval postoperative postsurgical low hyperexpanded tortuous degenerative
    borderline
""")

# What is always there and can grow: "no increase in heart size" denies a finding, "no increase in the effusion" not.
MEASURES = _words("""
    size sizes density densities thickness diameter caliber calibre width ratio index marking markings heart cardiac
    attenuation opacity interstitium vascularity volume
""")

# What makes a structure normal, and what says only that it did not change.
NORMAL = (
    "normal",
    "normally",
    "unremarkable",
    "natural",
    "within normal|the? limits|limit|range|units|bounds",
    "within limits",
    "within the normal limits|range",
    "within limits of normal",
    "normal limits|range",
    "wnl",
    "clear",
    "preserved|maintained",
    "midline",
    "nondilated|nonenlarged",
    "without abnormality|enlargement|widening",
)
UNCHANGED = (
    "stable",
    "unchanged",
    "similar to|in",
    "unaltered",
    "no .. change|changes",
    "not .. changed",
)
