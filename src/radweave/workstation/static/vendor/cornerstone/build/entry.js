// What the viewer uses of cornerstone3D: images and viewports of the core, and its tools.

export { Enums, RenderingEngine, cache, eventTarget, imageLoader, init, metaData, utilities } from "@cornerstonejs/core";
export {
  AngleTool, Enums as ToolEnums, EllipticalROITool, LengthTool, PanTool, ProbeTool, RectangleROITool, StackScrollTool,
  ToolGroupManager, WindowLevelTool, ZoomTool, addTool, annotation, init as initTools,
} from "@cornerstonejs/tools";
